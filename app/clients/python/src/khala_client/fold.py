"""The fold: computes a message's content from its parts, in order, exactly as the server does."""

from collections.abc import Iterable
from typing import Any

import msgspec

from khala_client.content import (
    Block,
    Compaction,
    CompactionBlock,
    Content,
    Notice,
    NoticeBlock,
    PartData,
    TextBlock,
    TextDelta,
    ToolBlock,
    ToolCall,
    ToolResult,
    ToolStatus,
)

UNKNOWN_TOOL = "unknown"
"""The tool's name in the block of a status or result without its call."""


def fold(content: Content, parts: Iterable[PartData]) -> Content:
    """The content after these parts. For every k, folding parts k..n onto the fold of 0..k is the fold of 0..n."""
    blocks = list(content)
    texts: list[str] = []
    for part in parts:
        if isinstance(part, TextDelta):
            texts.append(part.text)
        else:
            _append_text(blocks, texts)
            _apply(blocks, part)
    _append_text(blocks, texts)
    return tuple(blocks)


def _apply(blocks: list[Block], part: PartData) -> None:
    match part:
        case ToolCall():
            called = {"tool": part.tool, "step": part.step, "args": part.args, "args_blob": part.args_blob}
            _update_tool(blocks, part.tool_call_id, called)
        case ToolStatus():
            _update_tool(blocks, part.tool_call_id, _status(part))
        case ToolResult():
            _update_tool(blocks, part.tool_call_id, _result(part))
        case Notice():
            blocks.append(NoticeBlock(code=part.code, message=part.message, until=part.until))
        case Compaction():
            blocks.append(CompactionBlock(summary=part.summary, message_id=part.message_id, step=part.step))
        case _:  # Steps, the finish, errors and kinds of later servers are no content.
            pass


def _append_text(blocks: list[Block], texts: list[str]) -> None:
    """Move `texts` into the last block. They are joined first, because appending one by one is quadratic."""
    text = "".join(texts)
    texts.clear()
    last = blocks[-1] if blocks else None
    if text and isinstance(last, TextBlock):
        blocks[-1] = TextBlock(text=last.text + text)
    elif text:
        blocks.append(TextBlock(text=text))


def _status(part: ToolStatus) -> dict[str, Any]:
    """The changes of a status. Arguments change only if the status has new ones."""
    changes = {"state": part.state, "reason": part.reason, "digest": part.digest, "expires_at": part.expires_at}
    if part.args is None and part.args_blob is None:
        return changes
    return changes | {"args": part.args, "args_blob": part.args_blob}


def _result(part: ToolResult) -> dict[str, Any]:
    state = "completed" if part.ok else "failed"
    ended = {"state": state, "summary": part.summary, "output": part.output}
    return ended | {"blob": part.blob, "duration_ms": part.duration_ms}


def _update_tool(blocks: list[Block], tool_call_id: str, changes: dict[str, Any]) -> None:
    for index in reversed(range(len(blocks))):
        block = blocks[index]
        if isinstance(block, ToolBlock) and block.tool_call_id == tool_call_id:
            blocks[index] = msgspec.structs.replace(block, **changes)
            return
    blocks.append(ToolBlock(**{"tool_call_id": tool_call_id, "tool": UNKNOWN_TOOL, "state": "queued"} | changes))
