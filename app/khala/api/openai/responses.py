"""Responses to a completion request: OpenAI's chunks, events of an autopilot run, or the whole completion."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio
import msgspec
import structlog

from khala.api.blobs.blob_responses import read_chunks
from khala.api.context import Context
from khala.api.http.server_sent_events import KEEP_ALIVE, encode_event
from khala.api.openai import errors
from khala.api.openai.chat_completion import ChatCompletionBuilder, without_failure_text
from khala.api.openai.completion_options import CompletionOptions
from khala.api.openai.errors import RunFailed
from khala.api.openai.run_events import EventEncoder, PausedEvent, PendingApproval
from khala.api.openai.run_follower import follow_run
from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.chat import SendResult
from khala.domain.errors import KhalaError
from khala.domain.parts import BlobRef, Part
from khala.store.runs import completion_requests, detail_tokens, runs
from khala.store.runs.completion_requests import AcceptedRequest
from khala.store.tools import approvals

log = structlog.get_logger()

DONE = encode_event("[DONE]")
CANCEL_TIMEOUT_SECONDS = 5.0
"""Bounds the cancellation of a run whose client has disconnected."""


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted request, its caller, and the run that answers it."""

    context: Context
    caller: Caller
    options: CompletionOptions
    accepted: AcceptedRequest

    @property
    def sent(self) -> SendResult:
        """The ids of the stored message and of its run."""
        return self.accepted.sent

    @property
    def extension(self) -> dict[str, Any]:
        """The fields that Khala adds to OpenAI's response: ids, and the paths of the request that were ignored."""
        return {"threadId": self.sent.thread_id, "runId": self.sent.run_id, "ignored": self.options.ignored}

    def builder(self) -> ChatCompletionBuilder:
        """Return a builder of this request's completion."""
        names = [function.name for function in self.options.run.functions]
        created = int(ids.created_at(self.sent.run_id).timestamp())
        return ChatCompletionBuilder(self.sent, model=self.options.model, created=created, functions=names)

    async def load_arguments(self, ref: BlobRef) -> str:
        """Return a call's arguments that were too large for a part."""
        blob = await self.context.blobs.service.find(ref.blob_id, self.sent.thread_id)
        return b"".join([chunk async for chunk in read_chunks(self.context.blobs.service, blob)]).decode()

    def follow(self) -> AsyncGenerator[Sequence[Part]]:
        """Yield the parts of the run, and an empty sequence for a keep-alive."""
        return follow_run(self.context, self.sent, self.caller)


async def complete(request: CompletionRequest, disconnected: Callable[[], Coroutine[Any, Any, None]]) -> dict[str, Any]:
    """Return the completion when the run has ended. `disconnected` returns when the client has closed the connection.

    Raises `RunFailed` if the run fails, or if the client disconnects.
    """
    builder = request.builder()
    reading = asyncio.create_task(_read_all(request, builder))
    waiting = asyncio.create_task(disconnected())
    try:
        await asyncio.wait({reading, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            if request.options.cancels and not request.context.process.stopping.is_set():
                await _cancel_run(request)
            raise RunFailed("canceled", "The client has disconnected.")
        reading.result()
    finally:
        for task in (reading, waiting):
            task.cancel()
        await asyncio.wait({reading, waiting})
    completion = builder.completion()
    assert builder.finish is not None
    return completion | {"khala": request.extension | {"steps": builder.steps, "reason": builder.finish.reason}}


async def _read_all(request: CompletionRequest, builder: ChatCompletionBuilder) -> None:
    async with aclosing(request.follow()) as batches:
        async for parts in batches:
            await builder.add(parts, request.load_arguments)


async def stream_chunks(request: CompletionRequest) -> AsyncGenerator[str]:
    """Stream the completion as OpenAI's chunks. A stream that ends without `[DONE]` is incomplete."""
    builder = request.builder()
    async with _cancel_on_disconnect(request, lambda: builder.finish is not None):
        first = builder.chunk({"role": "assistant", "content": ""})
        yield _event(first | {"khala": request.extension})
        try:
            async with aclosing(request.follow()) as batches:
                async for parts in batches:
                    if not parts:
                        yield KEEP_ALIVE
                    for delta in await builder.add(parts, request.load_arguments):
                        yield _event(builder.chunk(delta))
            yield _event(builder.chunk({}, builder.finish_reason))
        except RunFailed as failed:
            yield _event(errors.run_error(failed))
            return
        except KhalaError as error:
            log.warning("completion_stream_failed", run_id=str(request.sent.run_id), error=error.message)
            yield _event(errors.run_error(RunFailed(error.code, error.message)))
            return
        if request.options.usage:
            yield _event(builder.usage_chunk())
        yield DONE


async def stream_events(request: CompletionRequest) -> AsyncGenerator[str]:
    """Stream the steps and the text of an autopilot run. A stream that ends without `[DONE]` is incomplete."""
    encoder = EventEncoder(request.sent)
    async with _cancel_on_disconnect(request, lambda: encoder.ended):
        start = encoder.start(max_steps=request.options.run.step_limit, model=request.options.model)
        yield _event(msgspec.structs.replace(start, ignored=request.options.ignored))
        try:
            async with aclosing(request.follow()) as batches:
                async for parts in batches:
                    if not parts:
                        yield KEEP_ALIVE
                    for data, at in without_failure_text(parts):
                        for event in encoder.encode(data, at):
                            yield _event(event)
                        if encoder.unannounced_calls:
                            tokens = await _create_tokens(request, encoder.unannounced_calls)
                            yield _event(encoder.announce_group(tokens))
                    if pending := encoder.take_pending_approvals():
                        yield _event(await _paused_event(request, pending))
        except KhalaError as error:
            log.warning("completion_stream_failed", run_id=str(request.sent.run_id), error=error.message)
            return
        yield DONE


async def _create_tokens(request: CompletionRequest, calls: Sequence[str]) -> dict[str, str]:
    async with request.context.db.driver() as driver:
        return await detail_tokens.create(
            driver,
            thread_id=request.sent.thread_id,
            run_id=request.sent.run_id,
            calls=calls,
            lifetime=request.context.threads.detail_token_lifetime,
        )


async def _paused_event(request: CompletionRequest, pending: frozenset[str]) -> PausedEvent:
    async with request.context.db.driver() as driver:
        by_call = await approvals.of_run(driver, request.sent.thread_id, request.sent.run_id)
    waiting = [
        PendingApproval(
            tool_call_id=call_id,
            tool=approval.tool,
            args=approval.args,
            digest=approval.digest,
            expires_at=approval.expires_at,
        )
        for call_id, approval in sorted(by_call.items())
        if call_id in pending and approval.state == "pending"
    ]
    return PausedEvent(run_id=request.sent.run_id, approvals=tuple(waiting))


@asynccontextmanager
async def _cancel_on_disconnect(request: CompletionRequest, ended: Callable[[], bool]) -> AsyncIterator[None]:
    """Cancel the run if the client disconnects before its end and has requested this. Otherwise the run continues."""
    try:
        yield
    finally:
        if not ended() and request.options.cancels and not request.context.process.stopping.is_set():
            await _cancel_run(request)


async def _cancel_run(request: CompletionRequest) -> None:
    """Cancel the run. Shielded, because the task that serves the disconnected client is being cancelled."""
    with anyio.move_on_after(CANCEL_TIMEOUT_SECONDS, shield=True) as scope:
        try:
            if await _release(request):
                await runs.cancel(request.context.db, request.sent.run_id, request.caller)
        except KhalaError as error:
            log.warning("run_cancel_failed", run_id=str(request.sent.run_id), error=error.message)
    if scope.cancelled_caught:
        log.warning("run_cancel_failed", run_id=str(request.sent.run_id), error="The cancellation timed out.")


async def _release(request: CompletionRequest) -> bool:
    """Return whether the run can be cancelled: no retry has joined it. A later retry starts another run."""
    return request.options.identity is None or await completion_requests.release(request.context.db, request.accepted)


def _event(body: Any) -> str:
    return encode_event(msgspec.json.encode(body).decode())
