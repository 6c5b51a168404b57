"""The fold: a message's content is its parts, folded in order, on the server and in every client alike.

The law: for every k ≤ n, folding parts k..n onto the fold of parts 0..k gives the fold of parts 0..n. So a reader that
holds the content at any seq goes on from there with deltas alone.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeAlias, assert_never
from uuid import UUID

import msgspec

from khala.domain.parts import (
    BlobRef,
    Compaction,
    Finish,
    Notice,
    PartData,
    ReasoningDelta,
    RunFailure,
    Step,
    TextDelta,
    ToolCall,
    ToolResult,
    ToolStatus,
)


class TextBlock(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="text"):
    """A run of text."""

    text: str


class NoticeBlock(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="notice"):
    """A notice where it happened, so that a late reader sees what a live one saw."""

    code: str
    message: str


class ToolBlock(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="tool", omit_defaults=True):
    """A tool call with all that is known of it: queued, running, completed, failed, blocked or cancelled."""

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
    """What stands for the model in place of older turns; a person still has the turns themselves."""

    summary: str
    message_id: UUID | None = None
    step: int = 0


class FileBlock(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="file"):
    """A file that somebody attached to their message."""

    blob: BlobRef


Block: TypeAlias = TextBlock | NoticeBlock | ToolBlock | CompactionBlock | FileBlock
Content: TypeAlias = tuple[Block, ...]

UNKNOWN_TOOL = "unknown"
"""The tool's name in a block that a result without its call made: an orphan shows rather than vanishes."""


def fold(content: Content, parts: Iterable[PartData | None]) -> Content:
    """The content after these parts; None stands for a part of an unknown kind and changes nothing."""
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
    """All text of a content, joined."""
    return "".join(block.text for block in content if isinstance(block, TextBlock))


def cancelled_statuses(content: Content) -> list[ToolStatus]:
    """What is to be said of the tool calls that have not ended when their run does."""
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
            blocks.append(NoticeBlock(code=part.code, message=part.message))
        case Compaction():
            block = CompactionBlock(summary=part.summary, message_id=part.message_id, step=part.step)
            blocks.append(block)
        case TextDelta() | Step() | RunFailure() | Finish() | ReasoningDelta():
            pass
        case _:
            assert_never(part)


def _append_text(blocks: list[Block], texts: list[str]) -> None:
    """Empty `texts` into the last block; joined at once, because appending one by one is quadratic."""
    text = "".join(texts)
    texts.clear()
    if text and blocks and isinstance(blocks[-1], TextBlock):
        blocks[-1] = TextBlock(text=blocks[-1].text + text)
    elif text:
        blocks.append(TextBlock(text=text))


def _status(part: ToolStatus) -> dict[str, Any]:
    """What a status says; only new arguments take the place of the old ones."""
    said = {"state": part.state, "reason": part.reason, "digest": part.digest, "expires_at": part.expires_at}
    if part.args is None and part.args_blob is None:
        return said
    return said | {"args": part.args, "args_blob": part.args_blob}


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
