"""Stored messages as the AI SDK's UI messages, for `useChat`'s initial messages. Without I/O."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from khala.api.ai_sdk.chunk_encoder import finish_metadata, run_metadata
from khala.api.ai_sdk.types import UiMessage
from khala.api.chats.client_results import active_branch, handed_over, read_output
from khala.api.chats.tool_values import CANCELED, approval_id, blob_url, error_text, tool_input, tool_output
from khala.domain.chat import Message
from khala.domain.fold import (
    Block,
    CompactionBlock,
    DataBlock,
    FileBlock,
    NoticeBlock,
    TextBlock,
    ToolBlock,
    without_replaced_text,
)
from khala.domain.parts import HANDED_OVER

UiPart = dict[str, Any]


def ui_messages(messages: Sequence[Message], leaf: UUID | None) -> list[UiMessage]:
    """Return the messages up to the leaf, in order, as far as they are among these.

    Answers that continue each other with results of the client's own tools are one message.
    """
    found: list[UiMessage] = []
    is_continued = False
    for message, original in active_branch(messages, leaf):
        shown = ui_message(message, handed_over(original or message))
        if original is not None:
            shown = msgspec.structs.replace(shown, id=str(original.id))
        if is_continued:
            shown = _joined(found.pop(), shown)
        found.append(shown)
        is_continued = original is not None
    return found


def _joined(before: UiMessage, after: UiMessage) -> UiMessage:
    return msgspec.structs.replace(
        before, parts=[*before.parts, *after.parts], metadata=before.metadata | after.metadata
    )


def ui_message(message: Message, client_calls: Sequence[str]) -> UiMessage:
    """Return the message. The parts of an answer are those that its stream gives, but for its reasoning.

    `client_calls` are the ids of the calls that the client executes.
    """
    is_answer = message.role == "assistant"
    parts = _answer_parts(message) if is_answer else [_part(block, None) for block in message.content or ()]
    for part in parts:
        if part.get("toolCallId") in client_calls:
            _give_to_client(part)
    return UiMessage(
        id=str(message.id), role=message.role, metadata=_metadata(message), parts=[part for part in parts if part]
    )


def _give_to_client(part: UiPart) -> None:
    """Show a call as one of the client's own tools: without a result until the client has sent one."""
    del part["providerExecuted"]
    if part.get("output") == HANDED_OVER:
        del part["output"]
        part["state"] = "input-available"
    elif "output" in part:
        part["output"] = read_output(part["output"])


def _metadata(message: Message) -> dict[str, Any]:
    if message.run_id is not None:
        metadata = run_metadata(message.thread_id, message.run_id)
    else:
        metadata = {"threadId": message.thread_id, "createdAt": message.created_at}
    if message.author_name is not None:
        metadata["authorName"] = message.author_name
    return metadata if message.finish is None else metadata | finish_metadata(message.finish)


def _answer_parts(message: Message) -> list[UiPart]:
    """Return the parts, with a `step-start` before each step: a step ends when text or a later step follows calls.

    Text that did not fit the requested format is left out; a stream has it, because no chunk takes another one back.
    """
    parts: list[UiPart] = []
    in_step, step_of_calls = False, None
    for block in without_replaced_text(message.content or ()):
        is_in_step = isinstance(block, ToolBlock) and step_of_calls is not None and block.step <= step_of_calls
        follows_calls = step_of_calls is not None and not is_in_step
        if isinstance(block, TextBlock | ToolBlock) and (not in_step or follows_calls):
            parts.append({"type": "step-start"})
            in_step, step_of_calls = True, None
        if isinstance(block, ToolBlock):
            step_of_calls = block.step
        parts.append(_part(block, message.run_id))
        if isinstance(block, ToolBlock) and block.blob is not None and block.blob.media_type.startswith("image/"):
            parts.append({"type": "file", "url": blob_url(block.blob.blob_id), "mediaType": block.blob.media_type})
    return parts


def _part(block: Block, run_id: UUID | None) -> UiPart:
    match block:
        case TextBlock():
            return {"type": "text", "text": block.text, "state": "done"}
        case NoticeBlock():
            return {"type": "data-notice", "data": {"code": block.code, "message": block.message}}
        case FileBlock(blob=blob):
            named = {"filename": blob.name} if blob.name else {}
            return {"type": "file", "url": blob_url(blob.blob_id), "mediaType": blob.media_type} | named
        case DataBlock():
            return {"type": f"data-{block.name}", "data": block.data}
        case ToolBlock():
            return _tool_part(block, run_id)
        case CompactionBlock():
            return {}


def _tool_part(block: ToolBlock, run_id: UUID | None) -> UiPart:
    call = {"toolCallId": block.tool_call_id, "input": tool_input(block, {}), "providerExecuted": True}
    part: UiPart = {"type": f"tool-{block.tool}"} | call
    match block.state:
        case "completed":
            return part | {"state": "output-available", "output": tool_output(block)}
        case "failed" if block.digest is not None and run_id is not None:
            # A call that was started has a status without a digest.
            approval = {"id": approval_id(run_id, block.digest, block.tool_call_id), "approved": False}
            return part | {"state": "output-denied", "approval": approval | {"reason": block.summary or ""}}
        case "failed":
            return part | {"state": "output-error", "errorText": error_text(block)}
        case "blocked" if run_id is not None:
            approval = {"id": approval_id(run_id, block.digest or "", block.tool_call_id)}
            return part | {"state": "approval-requested", "approval": approval}
        case "cancelled":
            return part | {"state": "output-error", "errorText": CANCELED}
        case _:
            return part | {"state": "input-available"}
