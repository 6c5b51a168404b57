"""Conversion of rows into structs. JSON columns arrive as text by both connection pools and are decoded here, once."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from khala.domain.chat import Message, Receipt, Run, StepRef, Thread
from khala.domain.decimals import format_optional
from khala.domain.fold import Content
from khala.domain.parts import Finish, Part

Record = Mapping[Any, Any]
T = TypeVar("T")


THREAD_COLUMNS = """
    threads.*, (
        SELECT expires_at FROM ephemeral_threads WHERE ephemeral_threads.thread_id = threads.id AND NOT recalls
    ) AS expires_at
"""
"""What `thread` reads of a row of the table `threads`, and the other columns of the table.

Of ephemeral threads, only temporary ones have `expires_at`."""


def decoded(value: str | None, kind: type[T]) -> T | None:
    """Decode a JSON column's value."""
    return None if value is None else msgspec.json.decode(value, type=kind)


def content(value: str | None) -> Content | None:
    """Decode a message's stored content."""
    return None if value is None else msgspec.json.decode(value, type=Content)


def thread(row: Record) -> Thread:
    """A row of `threads`, with the end of a temporary one."""
    return Thread(
        id=row["id"],
        owner_id=row["owner_id"],
        title=row["title"],
        visibility=row["visibility"],
        revision=row["revision"],
        active_leaf=row["active_leaf"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        expires_at=row["expires_at"],
    )


def message(row: Record) -> Message:
    """A row of `messages`, as a whole."""
    return Message(
        id=row["id"],
        thread_id=row["thread_id"],
        parent_id=row["parent_id"],
        role=row["role"],
        status=row["status"],
        run_id=row["run_id"],
        seq=row["seq"],
        author_id=row["author_id"],
        author_name=row["author_name"],
        content=content(row["content"]),
        finish=decoded(row["finish"], Finish),
        step=decoded(row["step"], StepRef),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def run(row: Record, message_finish: str | None = None) -> Run:
    """A row of `runs`. A run whose parts are packed has its finish only in its message: `message_finish`."""
    return Run(
        id=row["id"],
        thread_id=row["thread_id"],
        message_id=row["message_id"],
        status=row["status"],
        attempt=row["epoch"],
        steps=row["steps"],
        cancel_requested_at=row["cancel_requested_at"],
        created_at=row["created_at"],
        finish=decoded(row["finish"] or message_finish, Finish),
        waits_until=row["remote_deadline"] if row["status"] in ("queued", "running") else None,
    )


def part(row: Record) -> Part:
    """A row of `message_parts`."""
    return Part(
        run_id=row["run_id"],
        message_id=row["message_id"],
        seq=row["seq"],
        kind=row["kind"],
        data=msgspec.Raw(row["data"].encode()),
        created_at=row["created_at"],
    )


def receipt(row: Record) -> Receipt:
    """A row of `receipts`."""
    return Receipt(
        run_id=row["run_id"],
        seq=row["seq"],
        type=row["type"],
        tool_call_id=row["tool_call_id"],
        data=msgspec.json.decode(row["data"], type=dict[str, Any]),
        cost_usd=format_optional(row["cost_usd"]),
        hash=None if row["hash"] is None else row["hash"].hex(),
        created_at=row["created_at"],
    )
