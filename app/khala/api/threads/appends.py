"""Appends over REST: messages of people, bots and programs that no model answers."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, assert_never
from uuid import UUID

import msgspec
from litestar import Request, Response, post
from litestar.di import NamedDependency
from litestar.params import BodyKwarg

from khala.api.accounts.authentication import BY_KEY
from khala.api.context import Context
from khala.api.http.path_parameters import ThreadId
from khala.api.http.problem_details import documented_errors, documented_success
from khala.api.openapi.document import example
from khala.api.threads.types import (
    AppendedData,
    AppendedFile,
    AppendedMessage,
    AppendedPart,
    AppendedText,
    AppendRequest,
)
from khala.api.validation import check_json, check_new_id, check_text
from khala.domain.access import Caller
from khala.domain.chat import AppendedMessages
from khala.domain.errors import InvalidInput, PayloadTooLarge
from khala.domain.fold import DataBlock, TextBlock
from khala.store.threads import appends
from khala.store.threads.appends import Append, FileToAttach, MessageToAppend, NewBlock

MAX_DATA_BYTES = 16 << 10
"""Bytes of the data of one part, as JSON."""
MESSAGE_COST = 0.2
"""The cost of each further message of an append, in requests."""


@post(
    "/threads/{thread_id:uuid}/messages",
    tags=["Threads"],
    operation_id="appendMessages",
    summary="Add messages without an answer",
    security=BY_KEY,
    response_description="The messages are stored, and observers have been notified.",
    responses=documented_errors(
        "invalid_input", "unauthorized", "forbidden", "thread_not_found", "conflict", "run_active", "payload_too_large",
        "unsupported_media_type", "rate_limited", "unavailable",
    )
    | {200: documented_success(AppendedMessages, "The messages were already added. Nothing was changed.")},
)  # fmt: skip
async def append(
    request: Request[Any, Any, Any],
    context: NamedDependency[Context],
    caller: NamedDependency[Caller],
    thread_id: ThreadId,
    data: Annotated[
        AppendRequest,
        BodyKwarg(
            examples=example(
                "A message of a bot",
                messages=[
                    {"role": "assistant", "author": "Deploys", "parts": [{"type": "text", "text": "Aiur is online."}]}
                ],
            )
        ),
    ],
) -> Response[AppendedMessages]:
    """Store messages as one revision. No model is called. A repeated request with the same ids returns 200."""
    context.limits.requests.check(request, context.origins, cost=MESSAGE_COST * (len(data.messages) - 1))
    _check_ids([message.id for message in data.messages if message.id is not None])
    new = Append(messages=tuple(_messages(data.messages)), parent_id=data.parent_id, if_busy=data.if_busy)
    result, is_new = await appends.append(context.db, thread_id, new, caller)
    return Response(result, status_code=201 if is_new else 200)


def _check_ids(message_ids: Sequence[UUID]) -> None:
    if len(set(message_ids)) < len(message_ids):
        raise InvalidInput("Two of these messages have the same id.", path="messages")


def _messages(given: Iterable[AppendedMessage]) -> Iterator[MessageToAppend]:
    for index, message in enumerate(given):
        path = f"messages[{index}]"
        yield MessageToAppend(
            id=check_new_id(message.id, f"{path}.id"),
            role=message.role,
            blocks=tuple(_joined(_blocks(message.parts, f"{path}.parts"))),
            author=None if message.author is None else check_text(message.author, f"{path}.author"),
        )


def _blocks(parts: Sequence[AppendedPart], path: str) -> Iterator[NewBlock]:
    for index, part in enumerate(parts):
        match part:
            case AppendedText(text=text):
                yield TextBlock(text=check_text(text, f"{path}[{index}].text"))
            case AppendedFile(blob_id=blob_id):
                yield FileToAttach(blob_id)
            case AppendedData(name=name, data=data):
                yield DataBlock(name=name, data=_checked(data, f"{path}[{index}].data"))
            case _:
                assert_never(part)


def _joined(blocks: Iterable[NewBlock]) -> Iterator[NewBlock]:
    """The blocks, where consecutive text is one block: a content has it so."""
    text: list[str] = []
    for block in blocks:
        if isinstance(block, TextBlock):
            text.append(block.text)
            continue
        if text:
            yield TextBlock(text="".join(text))
            text.clear()
        yield block
    if text:
        yield TextBlock(text="".join(text))


def _checked(data: Any, path: str) -> Any:
    check_json(data, path)
    if len(msgspec.json.encode(data)) > MAX_DATA_BYTES:
        raise PayloadTooLarge(f"The data of one part has at most {MAX_DATA_BYTES:,} bytes.")
    return data
