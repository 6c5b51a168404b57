"""The fold: computes a message's content from its parts, in order. Every client computes the same content.

Invariant: for every k ≤ n, folding parts k..n onto the fold of parts 0..k gives the fold of parts 0..n. So a reader
with the content at any seq continues from there with deltas alone.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeAlias, assert_never
from uuid import UUID

import msgspec

from khala.domain.generation import FORMAT_REPAIR_NOTICE
from khala.domain.parts import (
    BlobRef,
    Compaction,
    Finish,
    Logprobs,
    MemoryRecall,
    Notice,
    PartData,
    ReasoningDelta,
    Route,
    RunFailure,
    Step,
    TextDelta,
    ToolCall,
    ToolResult,
    ToolStatus,
)


class TextBlock(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="text"):
    """Consecutive text."""

    text: str


class NoticeBlock(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="notice", omit_defaults=True):
    """A notice at its place in the content, so that late readers see the same as live ones."""

    code: str
    message: str
    until: datetime | None = None


class ToolBlock(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="tool", omit_defaults=True):
    """A tool call and its state: queued, running, completed, failed, blocked or cancelled."""

    tool_call_id: str
    tool: str
    state: str
    step: int = 0
    args: dict[str, Any] | None = None
    args_blob: BlobRef | None = None
    reason: str | None = None
    digest: str | None = None
    expires_at: datetime | None = None
    summary: str | None = None
    output: Any = None
    blob: BlobRef | None = None
    duration_ms: int | None = None


class CompactionBlock(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="compaction", omit_defaults=True):
    """A summary that replaces older turns for the model. People still see the turns."""

    summary: str
    message_id: UUID | None = None
    step: int = 0


class FileBlock(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="file"):
    """A file that is attached to a message."""

    blob: BlobRef


class DataBlock(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="data"):
    """Data of an appended message, for clients: models do not get it, and the search does not find it."""

    name: str
    data: Any


Block: TypeAlias = TextBlock | NoticeBlock | ToolBlock | CompactionBlock | FileBlock | DataBlock
Content: TypeAlias = tuple[Block, ...]

UNKNOWN_TOOL = "unknown"
"""The tool's name in the block of a result without a call. Such a result is shown, not dropped."""


def fold(content: Content, parts: Iterable[PartData | None]) -> Content:
    """The content after these parts. None stands for a part of an unknown kind, which changes nothing."""
    blocks = list(content)
    texts: list[str] = []
    for part in parts:
        if isinstance(part, TextDelta):
            texts.append(part.text)
        elif part is not None:
            _append_text(blocks, texts)
            _apply(blocks, part)
    _append_text(blocks, texts)
    return tuple(blocks)


def text_of(content: Content) -> str:
    """The text of a content, joined."""
    return "".join(block.text for block in content if isinstance(block, TextBlock))


def without_replaced_text(content: Content) -> Content:
    """The content without text that did not fit the requested format: the model has written it again.

    Clients of the wire protocol get that text, because nothing takes a part back, and do not present it.
    """
    blocks: list[Block] = []
    for block in content:
        if isinstance(block, NoticeBlock) and block.code == FORMAT_REPAIR_NOTICE:
            last_call = next((i for i in reversed(range(len(blocks))) if isinstance(blocks[i], ToolBlock)), -1)
            blocks = [one for i, one in enumerate(blocks) if i <= last_call or not isinstance(one, TextBlock)]
        blocks.append(block)
    return tuple(blocks)


def cancelled_statuses(content: Content) -> list[ToolStatus]:
    """The final statuses of the tool calls that have not ended when their run ends."""
    open_states = ("queued", "running", "blocked")
    tools = (block for block in content if isinstance(block, ToolBlock) and block.state in open_states)
    return [ToolStatus(tool_call_id=tool.tool_call_id, state="cancelled") for tool in tools]


def _apply(blocks: list[Block], part: PartData) -> None:
    match part:
        case ToolCall():
            called = {"tool": part.tool, "step": part.step, "args": part.args, "args_blob": part.args_blob}
            _update_tool(blocks, part.tool_call_id, **called)
        case ToolStatus():
            _update_tool(blocks, part.tool_call_id, **_status(part))
        case ToolResult():
            _settle_tool(blocks, part)
        case Notice():
            blocks.append(NoticeBlock(code=part.code, message=part.message, until=part.until))
        case Compaction():
            block = CompactionBlock(summary=part.summary, message_id=part.message_id, step=part.step)
            blocks.append(block)
        case TextDelta() | Step() | MemoryRecall() | Route() | RunFailure() | Finish() | ReasoningDelta() | Logprobs():
            pass
        case _:
            assert_never(part)


def _append_text(blocks: list[Block], texts: list[str]) -> None:
    """Move `texts` into the last block. They are joined first, because appending one by one is quadratic."""
    text = "".join(texts)
    texts.clear()
    if text and blocks and isinstance(blocks[-1], TextBlock):
        blocks[-1] = TextBlock(text=blocks[-1].text + text)
    elif text:
        blocks.append(TextBlock(text=text))


def _status(part: ToolStatus) -> dict[str, Any]:
    """The changes of a status. Arguments change only if the status has new ones."""
    changes = {"state": part.state, "reason": part.reason, "digest": part.digest, "expires_at": part.expires_at}
    if part.args is None and part.args_blob is None:
        return changes
    return changes | {"args": part.args, "args_blob": part.args_blob}


def _settle_tool(blocks: list[Block], part: ToolResult) -> None:
    _update_tool(
        blocks,
        part.tool_call_id,
        state="completed" if part.ok else "failed",
        summary=part.summary,
        output=part.output,
        blob=part.blob,
        duration_ms=part.duration_ms,
    )


def _update_tool(blocks: list[Block], tool_call_id: str, **changes: Any) -> None:
    for index in reversed(range(len(blocks))):
        block = blocks[index]
        if isinstance(block, ToolBlock) and block.tool_call_id == tool_call_id:
            blocks[index] = msgspec.structs.replace(block, **changes)
            return
    blocks.append(ToolBlock(**{"tool_call_id": tool_call_id, "tool": UNKNOWN_TOOL, "state": "queued"} | changes))
