"""Shared by the lists of the console: their base, the accounts in them, and statements that are made of parts."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from khala.store.postgres.rows import Record

MAX_EXAMINED = 10_000
"""Rows that one page examines if a filter has no index."""
MAX_PAGE = 200
"""Items of one page."""
LAST_ID = UUID(int=2**128 - 1)
"""Behind every id."""


class ConsoleStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the structs of the console on the wire. Every field is present; null where a value is unknown."""


class AccountRef(ConsoleStruct, frozen=True, kw_only=True):
    """An account that something belongs to. The name and address of one that was deleted are null."""

    id: UUID
    name: str | None
    email: str | None


class Statement:
    """Collects the arguments of a statement, and numbers their placeholders."""

    def __init__(self) -> None:
        self.arguments: list[object] = []

    def add(self, value: object, kind: str) -> str:
        """The placeholder of this value, as SQL with a cast to the type."""
        self.arguments.append(value)
        return f"${len(self.arguments)}::{kind}"


def account_columns(user_id: str, prefix: str) -> str:
    """SQL: columns for `account_ref`. Each is read by key, whatever the planner assumes."""
    return f"""
        {user_id} AS {prefix}_id,
        (SELECT name FROM users WHERE users.id = {user_id}) AS {prefix}_name,
        (SELECT email FROM users WHERE users.id = {user_id}) AS {prefix}_email
    """


def account_ref(row: Record, prefix: str) -> AccountRef | None:
    """The account of a row with `account_columns`; None for a guest, who has no id or the nil UUID."""
    user_id = row[f"{prefix}_id"]
    if user_id is None or user_id.int == 0:
        return None
    return AccountRef(id=user_id, name=row[f"{prefix}_name"], email=row[f"{prefix}_email"])


def as_uuid(text: str) -> UUID | None:
    """The UUID that the text is; None for any other text."""
    try:
        return UUID(text.strip())
    except ValueError:
        return None


def joined(conditions: Sequence[str]) -> str:
    """SQL: all of these conditions."""
    return " AND ".join(f"({condition})" for condition in conditions) or "true"
