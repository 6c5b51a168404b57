"""Lists stored messages as items of the Responses API: the input of a response, and the items of a conversation."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from khala.api.openai.types import JsonObject
from khala.domain.chat import Message
from khala.domain.errors import InvalidInput
from khala.domain.fold import FileBlock, TextBlock, ToolBlock
from khala.domain.parts import HANDED_OVER
from khala.store.postgres.database import Driver
from khala.store.runs.response_runs import ResponseRun
from khala.store.threads import messages

MAX_PATH_MESSAGES = 2000
MAX_PATH_BYTES = 64 << 20
"""The newest messages of a branch that are read, and their size."""
MAX_PAGE_ITEMS = 100


async def read_input_items(driver: Driver, found: ResponseRun) -> list[JsonObject]:
    """Return the input of the response, in order: results of calls, and then messages."""
    request = found.options.response
    after = None if request is None else request.after
    path = await read_branch(driver, found.run.thread_id, found.user_message_id)
    results = request.results if request is not None else ()
    items: list[JsonObject] = []
    for message in path:
        if message.id == after:
            items = [item for item in message_items(message) if _is_result(item, results)]
        else:
            items += message_items(message)
    return items


async def read_branch(driver: Driver, thread_id: Any, leaf: Any) -> list[Message]:
    """Return the messages of a branch, in order."""
    return await messages.read_path(driver, thread_id, leaf, max_messages=MAX_PATH_MESSAGES, max_bytes=MAX_PATH_BYTES)


def page(items: Sequence[JsonObject], *, order: str, after: str | None, limit: int) -> JsonObject:
    """Return a page of the items. Raises `InvalidInput` if no item has the id `after`."""
    ordered = [*items] if order == "asc" else [*reversed(items)]
    start = 0
    if after is not None:
        start = next((index + 1 for index, item in enumerate(ordered) if item["id"] == after), -1)
        if start < 0:
            raise InvalidInput("No item has this id.", path="after")
    listed = ordered[start : start + limit]
    return {
        "object": "list",
        "data": listed,
        "first_id": listed[0]["id"] if listed else None,
        "last_id": listed[-1]["id"] if listed else None,
        "has_more": start + limit < len(ordered),
    }


def message_items(message: Message) -> Iterator[JsonObject]:
    """Yield the items of a message: its text and files, and its calls with their results."""
    content: list[JsonObject] = []
    is_answer = message.role == "assistant"
    for index, block in enumerate(message.content or ()):
        match block:
            case TextBlock(text=text) if is_answer:
                content.append({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
            case TextBlock(text=text):
                content.append({"type": "input_text", "text": text})
            case FileBlock(blob=blob) if blob.media_type.startswith("image/"):
                content.append({"type": "input_image", "detail": "auto", "image_url": f"/api/blobs/{blob.blob_id}"})
            case FileBlock(blob=blob):
                content.append({"type": "input_file", "filename": blob.name, "file_url": f"/api/blobs/{blob.blob_id}"})
            case ToolBlock():
                if content:
                    yield _message(message, index, content)
                    content = []
                yield from _call_items(message, index, block)
            case _:
                pass
    if content:
        yield _message(message, len(message.content or ()), content)


def _message(message: Message, index: int, content: Sequence[JsonObject]) -> JsonObject:
    return {
        "id": f"msg_{message.id.hex}_{index}",
        "type": "message",
        "status": "completed",
        "role": message.role,
        "content": [*content],
    }


def _call_items(message: Message, index: int, block: ToolBlock) -> Iterator[JsonObject]:
    yield {
        "id": f"fc_{message.id.hex}_{index}",
        "type": "function_call",
        "status": "completed",
        "call_id": block.tool_call_id,
        "name": block.tool,
        "arguments": msgspec.json.encode(block.args or {}).decode(),
    }
    if block.state not in ("completed", "failed") or (block.summary == HANDED_OVER and block.output is None):
        return
    output = block.output if block.output is not None else block.summary or ""
    yield {
        "id": f"fco_{message.id.hex}_{index}",
        "type": "function_call_output",
        "status": "completed",
        "call_id": block.tool_call_id,
        "output": output if isinstance(output, str) else msgspec.json.encode(output).decode(),
    }


def _is_result(item: JsonObject, calls: Sequence[str]) -> bool:
    return item["type"] == "function_call_output" and item["call_id"] in calls
