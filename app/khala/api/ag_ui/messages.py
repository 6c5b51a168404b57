"""Stored messages as messages of AG-UI and of TanStack AI. Without I/O.

An answer is one assistant message for each step of the model, with the results of the step's calls after it. The ids
follow from the answer's id. They are those of the stream.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from khala.api.chats.client_results import active_branch, handed_over
from khala.api.chats.tool_values import CANCELED, approval_id, blob_url, error_text, tool_input, tool_output
from khala.domain.chat import Message
from khala.domain.fold import Content, FileBlock, TextBlock, ToolBlock
from khala.domain.parts import BlobRef, ToolResult

AgentMessage = dict[str, Any]

KINDS = ("image", "audio", "video")
"""Media types whose first half is the kind of a content part. All others are documents."""


def segment_id(message_id: UUID, number: int) -> str:
    """Return the id of the message for this step of an answer, from 1 on."""
    return str(message_id) if number <= 1 else f"{message_id}:{number}"


def result_id(call_id: str) -> str:
    """Return the id of the message with the result of a call."""
    return f"{call_id}:result"


def function_arguments(args: Any) -> str:
    """Return the arguments of a call as JSON."""
    return msgspec.json.encode(args).decode()


def result_content(result: ToolResult | ToolBlock) -> str:
    """Return the output of a call as text: as it is, or as JSON."""
    output = tool_output(result)
    return output if isinstance(output, str) else msgspec.json.encode(output).decode()


def agent_messages(messages: Sequence[Message], leaf: UUID | None) -> list[AgentMessage]:
    """Return the messages up to the leaf, in order, as far as they are among these."""
    found: list[AgentMessage] = []
    for message, original in active_branch(messages, leaf):
        if message.role == "assistant":
            owned = handed_over(original or message)
            found += answer_messages((original or message).id, message.content or (), owned)
        elif message.role == "user":
            found.append({"id": str(message.id), "role": "user", "content": _user_content(message.content or ())})
        else:
            found.append({"id": str(message.id), "role": message.role, "content": _text(message.content or ())})
    return found


def answer_messages(message_id: UUID, content: Content, client_calls: Sequence[str] = ()) -> list[AgentMessage]:
    """Return the messages of an answer. `client_calls` are the ids of the calls that the client executes."""
    found: list[AgentMessage] = []
    results: list[AgentMessage] = []
    number, step_of_calls = 0, None
    for block in content:
        if not isinstance(block, TextBlock | ToolBlock):
            continue
        is_in_step = isinstance(block, ToolBlock) and step_of_calls is not None and block.step <= step_of_calls
        if not number or (step_of_calls is not None and not is_in_step):
            found += results
            results, step_of_calls = [], None
            number += 1
            found.append({"id": segment_id(message_id, number), "role": "assistant"})
        if isinstance(block, TextBlock):
            found[-1]["content"] = found[-1].get("content", "") + block.text
            continue
        step_of_calls = block.step
        called = {"name": block.tool, "arguments": function_arguments(tool_input(block, {}))}
        found[-1].setdefault("toolCalls", []).append({"id": block.tool_call_id, "type": "function", "function": called})
        results += _results(block, client_calls)
    return found + results


def _results(block: ToolBlock, client_calls: Sequence[str]) -> list[AgentMessage]:
    """Return the message with the call's result, if it has ended. The client's own calls end with its results."""
    is_handed_over = block.tool_call_id in client_calls and block.output is None
    if block.state not in ("completed", "failed", "cancelled") or is_handed_over:
        return []
    named = {"id": result_id(block.tool_call_id), "role": "tool", "toolCallId": block.tool_call_id}
    if block.state == "completed":
        return [{**named, "content": result_content(block)}]
    problem = CANCELED if block.state == "cancelled" else error_text(block)
    return [{**named, "content": problem, "error": problem}]


def _text(content: Content) -> str:
    return "".join(block.text for block in content if isinstance(block, TextBlock))


def _user_content(content: Content) -> str | list[dict[str, Any]]:
    files = [block.blob for block in content if isinstance(block, FileBlock)]
    text = _text(content)
    if not files:
        return text
    return [*([{"type": "text", "text": text}] if text else []), *map(_file_part, files)]


def _file_part(blob: BlobRef) -> dict[str, Any]:
    kind = blob.media_type.partition("/")[0]
    source = {"type": "url", "value": blob_url(blob.blob_id), "mimeType": blob.media_type}
    return {"type": kind if kind in KINDS else "document", "source": source}


def chat_messages(messages: Sequence[AgentMessage], run_id: UUID | None, content: Content) -> list[AgentMessage]:
    """Return the messages as TanStack AI's `UIMessage`. `content` is that of the run that waits for an approval."""
    waiting = {} if run_id is None else _waiting(run_id, content)
    results = {message["toolCallId"]: message for message in messages if message["role"] == "tool"}
    return [
        {"id": message["id"], "role": message["role"], "parts": _chat_parts(message, results, waiting)}
        for message in messages
        if message["role"] != "tool"
    ]


def _waiting(run_id: UUID, content: Content) -> dict[str, str]:
    calls = [block for block in content if isinstance(block, ToolBlock) and block.state == "blocked"]
    return {call.tool_call_id: approval_id(run_id, call.digest or "", call.tool_call_id) for call in calls}


def _chat_parts(
    message: AgentMessage, results: dict[str, AgentMessage], waiting: dict[str, str]
) -> list[dict[str, Any]]:
    content = message.get("content", "")
    texts = [{"type": "text", "content": content}] if isinstance(content, str) and content else []
    parts = [*texts, *([] if isinstance(content, str) else map(_chat_content, content))]
    for call in message.get("toolCalls", ()):
        result = results.get(call["id"])
        state = "input-complete" if result is None else "complete"
        part = {"type": "tool-call", "id": call["id"], **call["function"], "state": state}
        if call["id"] in waiting:
            part |= {"state": "approval-requested", "approval": {"id": waiting[call["id"]], "needsApproval": True}}
        parts.append(part)
        if result is not None:
            ended = {"state": "error", "error": result["error"]} if "error" in result else {"state": "complete"}
            parts.append({"type": "tool-result", "toolCallId": call["id"], "content": result["content"], **ended})
    return parts


def _chat_content(part: dict[str, Any]) -> dict[str, Any]:
    return {"type": "text", "content": part["text"]} if part["type"] == "text" else part
