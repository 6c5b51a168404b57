"""Accepts requests for a response: queues the run that is the response, or joins the run of an equal request."""

from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from litestar import Request

from khala.api.context import Context
from khala.api.openai.completion_options import DEFAULT_EPHEMERAL_SECONDS, HEADERS, CompletionOptions
from khala.api.openai.history import History, read_history
from khala.api.openai.request_body import EMPTY, MAX_IGNORED_PATHS, MAX_TEXT_BYTES, file_characters
from khala.api.openai.submission import Submission
from khala.api.responses.continuation import find_continued
from khala.api.responses.input_items import ConvertedInput, convert_input
from khala.api.responses.response_options import read_options, refuse_unsupported
from khala.api.responses.types import ResponseBody
from khala.api.runs import option_checks
from khala.api.validation import check_text
from khala.domain import idempotency, ids, unknown_fields
from khala.domain.access import Caller
from khala.domain.chat import MAX_INSTRUCTIONS_CHARACTERS, ResponseRequest
from khala.domain.errors import InvalidInput, PayloadTooLarge
from khala.domain.idempotency import RequestIdentity
from khala.store.runs import completion_requests
from khala.store.runs.completion_requests import AcceptedRequest

T = TypeVar("T")
decoder = msgspec.json.Decoder(ResponseBody)


async def create(
    request: Request[Any, Any, Any], context: Context, caller: Caller
) -> tuple[ResponseBody, AcceptedRequest]:
    """Return the decoded body, and the run that answers it. Raises the errors of sending."""
    body = await request.body()
    parsed = decode_body(body, decoder)
    identity = idempotency.identity(
        caller, body, request.headers, HEADERS, received=request.scope["state"]["began"], run_id=ids.new()
    )
    # Before anything else: the first request may have changed what a retry would continue.
    joined = await completion_requests.join(context.db, identity) if identity and identity.may_be_known else None
    if joined is not None:
        return parsed, joined
    submission = await _submission(request, parsed, len(body), identity, context, caller)
    return parsed, await submission.submit()


async def _submission(
    request: Request[Any, Any, Any],
    body: ResponseBody,
    size: int,
    identity: RequestIdentity | None,
    context: Context,
    caller: Caller,
) -> Submission:
    refuse_unsupported(body, request.headers)
    named_thread = request.headers.get("x-thread-id")
    continued = await find_continued(body, None if named_thread is None else _uuid(named_thread), context, caller)
    given = convert_input(body.input, continued.open_calls if continued else ())
    if size - sum(map(file_characters, given.messages)) > MAX_TEXT_BYTES:
        raise PayloadTooLarge(f"A request has at most {MAX_TEXT_BYTES:,} bytes besides its files.")
    options = await read_options(body, given.messages, request.headers, context)
    history = _history(given)
    ignored = [
        *islice(_unknown_paths(await request.json()), MAX_IGNORED_PATHS),
        *option_checks.without_effect(options.run, context),
    ]
    answer = continued.answer(given.results) if continued else None
    is_ephemeral = body.store is False and continued is None
    if body.store is False and continued is not None:
        ignored.append("store")
    if body.max_tool_calls is not None and not options.run.tools:
        ignored.append("max_tool_calls")
    response = ResponseRequest(
        model=body.model,
        previous=continued.run_id if continued and not continued.is_conversation else None,
        conversation=continued is not None and continued.is_conversation,
        background=bool(body.background),
        ephemeral=is_ephemeral,
        max_tool_calls=body.max_tool_calls,
        after=None if answer is None else answer.completed.id if answer.completed else answer.leaf,
        results=tuple(given.results),
        ignored=tuple(ignored[:MAX_IGNORED_PATHS]),
    )
    options = _with_instructions(options, body.instructions or "", history if continued else None)
    return Submission(
        context=context,
        caller=caller,
        history=history,
        options=msgspec.structs.replace(
            options,
            thread_id=None if continued is None else continued.thread_id,
            lifetime=_lifetime(options, is_ephemeral=is_ephemeral),
            identity=identity,
        ),
        after=answer,
        response=response,
    )


def decode_body(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Return the decoded body. Raises `InvalidInput` with the path of the field that does not fit."""
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        message, _, place = str(error).partition(" - at `$")
        raise InvalidInput(f"{message}.", path=place.rstrip("`").removeprefix(".")) from error


def _uuid(text: str) -> UUID:
    try:
        return UUID(text.strip())
    except ValueError as error:
        raise InvalidInput("A thread's id is a UUID.", path="x-thread-id") from error


def _history(given: ConvertedInput) -> History:
    """The messages as turns. There may be none if calls have returned."""
    if given.results and not given.messages:
        return History(system="", turns=[], results={})
    return read_history(given.messages, given.paths or ["input"])


def _unknown_paths(body: Any) -> Iterator[str]:
    return (field.path for field in unknown_fields.find(body, ResponseBody) if field.value not in EMPTY)


def _with_instructions(options: CompletionOptions, instructions: str, continued: History | None) -> CompletionOptions:
    """The options with the instructions of the run: also those of messages, if a thread continues.

    A new thread stores the instructions of messages as its own.
    """
    texts = [instructions, continued.system if continued else ""]
    joined = "\n\n".join(filter(None, texts))
    if len(joined) > MAX_INSTRUCTIONS_CHARACTERS:
        raise InvalidInput(
            f"Instructions have at most {MAX_INSTRUCTIONS_CHARACTERS:,} characters in a conversation that continues.",
            path="instructions",
        )
    checked = check_text(joined, "instructions")
    return msgspec.structs.replace(options, run=msgspec.structs.replace(options.run, instructions=checked))


def _lifetime(options: CompletionOptions, *, is_ephemeral: bool) -> timedelta | None:
    return options.lifetime or (timedelta(seconds=DEFAULT_EPHEMERAL_SECONDS) if is_ephemeral else None)
