"""One run as a timeline: its model calls, tool calls, approvals, notices and end, without any text."""

from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import msgspec

from khala.domain.decimals import format_optional
from khala.domain.parts import Finish, Notice, Part, RunFailure, Step
from khala.store.console.pages import ConsoleStruct
from khala.store.console.run_list import ConsoleRun
from khala.store.postgres import rows
from khala.store.postgres.database import Driver
from khala.store.postgres.rows import Record
from khala.store.runs import packed_parts

MAX_EVENTS = 2_000
SHOWN_PARTS = ("step", "notice", "error", "finish")
MAX_NAME_CHARACTERS = 200

PARTS = f"""
    SELECT * FROM message_parts WHERE run_id = $1 AND thread_id IS NOT DISTINCT FROM $2
      AND kind IN ({", ".join(f"'{kind}'" for kind in SHOWN_PARTS)})
    ORDER BY run_id, seq LIMIT {MAX_EVENTS + 1}
"""
RECEIPTS = f"""
    SELECT seq, type, tool_call_id, data, cost_usd, created_at FROM receipts
    WHERE run_id = $1 AND thread_id IS NOT DISTINCT FROM $2 ORDER BY run_id, seq LIMIT {MAX_EVENTS + 1}
"""
APPROVALS = f"""
    SELECT tool_call_id, tool, state, created_at, expires_at, decided_at, decided_by FROM approvals
    WHERE run_id = $1 AND thread_id IS NOT DISTINCT FROM $2 ORDER BY created_at LIMIT {MAX_EVENTS + 1}
"""
IS_PACKED = "SELECT parts_layout IS NOT NULL FROM runs WHERE id = $1"


class TimelineEvent(ConsoleStruct, frozen=True, kw_only=True):
    """Something that happened in a run. `at` is when it was recorded: for calls, after their end."""

    kind: Literal["queued", "step", "model", "tool", "approval", "notice", "error", "cancel_requested", "finished"]
    at: datetime
    started_at: datetime | None = None
    duration_ms: int | None = None
    seq: int | None = None
    step: int | None = None
    attempt: int | None = None
    provider: str | None = None
    model: str | None = None
    tool: str | None = None
    tool_call_id: str | None = None
    source: str | None = None
    outcome: str | None = None
    code: str | None = None
    usd: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    first_token_ms: int | None = None
    estimated: bool | None = None
    bytes: int | None = None
    decided_by: UUID | None = None
    decided_at: datetime | None = None
    expires_at: datetime | None = None


class RunTimeline(ConsoleStruct, frozen=True, kw_only=True):
    """A run and its events in order of time. `packed`: its parts are stored without revisions."""

    run: ConsoleRun
    timeline: list[TimelineEvent]
    truncated: bool
    packed: bool


async def read_timeline(driver: Driver, run: ConsoleRun) -> RunTimeline:
    """Return what happened in the run. Of more than `MAX_EVENTS` events, the first."""
    packed = bool(await driver.fetchval(IS_PACKED, run.id))
    parts = await _parts(driver, run, packed=packed)
    receipts = await driver.fetch(RECEIPTS, run.id, run.thread_id)
    approvals = await driver.fetch(APPROVALS, run.id, run.thread_id)
    events = [TimelineEvent(kind="queued", at=run.created_at)]
    events += [event for part in parts if (event := _of_part(part)) is not None]
    events += map(_of_receipt, receipts)
    events += map(_of_approval, approvals)
    if run.cancel_requested_at is not None:
        events.append(TimelineEvent(kind="cancel_requested", at=run.cancel_requested_at))
    events.sort(key=lambda event: (event.at, event.kind == "finished"))
    return RunTimeline(run=run, timeline=events[:MAX_EVENTS], truncated=len(events) > MAX_EVENTS, packed=packed)


async def _parts(driver: Driver, run: ConsoleRun, *, packed: bool) -> list[Part]:
    if packed:
        return [part for part in await packed_parts.of_run(driver, run.thread_id, run.id) if part.kind in SHOWN_PARTS]
    return [rows.part(row) for row in await driver.fetch(PARTS, run.id, run.thread_id)]


def _of_part(part: Part) -> TimelineEvent | None:
    common: dict[str, Any] = {"at": part.created_at, "seq": part.seq}
    match part.read():
        case Step(step=step, cost_usd=usd):
            return TimelineEvent(kind="step", step=step, usd=usd, **common)
        case Notice(code=code):
            return TimelineEvent(kind="notice", code=_name(code), **common)
        case RunFailure(code=code):
            return TimelineEvent(kind="error", code=_name(code), **common)
        case Finish() as finish:
            return TimelineEvent(kind="finished", **common, **_of_finish(finish))
        case _:
            return None


def _of_finish(finish: Finish) -> dict[str, Any]:
    return {
        "outcome": _name(finish.reason),
        "provider": finish.provider,
        "model": finish.model,
        "usd": finish.cost_usd,
        "input_tokens": finish.usage.input_tokens,
        "output_tokens": finish.usage.output_tokens,
        "duration_ms": finish.total_ms,
        "first_token_ms": finish.time_to_first_token_ms,
    }


class _Usage(msgspec.Struct, frozen=True, rename="camel"):
    input_tokens: int | None = None
    output_tokens: int | None = None


class _CallFacts(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a receipt that the timeline has. Receipts that an import brought may lack any of them."""

    provider: str | None = None
    model: str | None = None
    attempt: int | None = None
    outcome: str | None = None
    usage: _Usage = _Usage()
    estimated: bool | None = None
    time_to_first_token_ms: int | None = None
    total_ms: int | None = None
    tool: str | None = None
    source: str | None = None
    size: int | None = None
    duration_ms: int | None = None


def _of_receipt(row: Record) -> TimelineEvent:
    try:
        facts = msgspec.json.decode(row["data"], type=_CallFacts, strict=False)
    except msgspec.ValidationError:
        facts = _CallFacts()
    duration = facts.duration_ms if row["type"] == "tool" else facts.total_ms
    return TimelineEvent(
        kind=row["type"],
        at=row["created_at"],
        started_at=None if duration is None else _before(row["created_at"], duration),
        duration_ms=duration,
        seq=row["seq"],
        attempt=facts.attempt,
        provider=facts.provider,
        model=facts.model,
        tool=facts.tool,
        tool_call_id=row["tool_call_id"],
        source=facts.source,
        outcome=_name(facts.outcome),
        usd=format_optional(row["cost_usd"]),
        input_tokens=facts.usage.input_tokens,
        output_tokens=facts.usage.output_tokens,
        first_token_ms=facts.time_to_first_token_ms,
        estimated=facts.estimated,
        bytes=facts.size,
    )


def _before(moment: datetime, milliseconds: int) -> datetime | None:
    try:
        return moment - timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def _of_approval(row: Record) -> TimelineEvent:
    return TimelineEvent(
        kind="approval",
        at=row["created_at"],
        tool=row["tool"],
        tool_call_id=row["tool_call_id"],
        outcome=row["state"],
        expires_at=row["expires_at"],
        decided_at=row["decided_at"],
        decided_by=row["decided_by"],
    )


def _name(code: str | None) -> str | None:
    """A code of this server, at most as long as a name. Receipts and notices have no text of people there."""
    return None if code is None else code[:MAX_NAME_CHARACTERS]
