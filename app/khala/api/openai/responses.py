"""Responses to a completion request: OpenAI's chunks, events of an autopilot run, or the whole completion."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import msgspec
import structlog

from khala.api.blobs.blob_responses import read_whole
from khala.api.context import Context
from khala.api.http.server_sent_events import KEEP_ALIVE, encode_event
from khala.api.openai import errors
from khala.api.openai.chat_completion import ChatCompletionBuilder, join, total_usage
from khala.api.openai.completion_options import CompletionOptions
from khala.api.openai.errors import RunFailed
from khala.api.openai.run_events import EventEncoder, PausedEvent, PendingApproval
from khala.api.runs.run_follower import FollowedRun, RunUpdate, follow_run
from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.chat import SendResult
from khala.domain.errors import KhalaError
from khala.domain.parts import BlobRef, Part, TextDelta, without_failure_text
from khala.store.runs import completion_requests, detail_tokens, runs
from khala.store.runs.completion_requests import AcceptedRequest
from khala.store.tools import approvals

log = structlog.get_logger()

DONE = encode_event("[DONE]")
CLIENT_GONE = "The client has disconnected."
CANCEL_TIMEOUT_SECONDS = 5.0
"""Bounds the cancellation of a run whose client has disconnected."""


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted request, its caller, and the run that answers it. `further` are the runs of further choices."""

    context: Context
    caller: Caller
    options: CompletionOptions
    accepted: AcceptedRequest
    further: tuple[SendResult, ...] = ()

    @property
    def sent(self) -> SendResult:
        """The ids of the stored message and of its run."""
        return self.accepted.sent

    @property
    def runs(self) -> tuple[SendResult, ...]:
        """The runs of all choices."""
        return self.sent, *self.further

    @property
    def extension(self) -> dict[str, Any]:
        """The fields that Khala adds to OpenAI's response: ids, and the paths of the request that were ignored."""
        ids_of_run = {"threadId": self.sent.thread_id, "runId": self.sent.run_id, "ignored": self.options.ignored}
        return ids_of_run | ({"runIds": [sent.run_id for sent in self.runs]} if self.further else {})

    def builders(self) -> list[ChatCompletionBuilder]:
        """Return a builder for each choice."""
        return [self._builder(index) for index in range(len(self.runs))]

    def _builder(self, index: int) -> ChatCompletionBuilder:
        created = int(ids.created_at(self.sent.run_id).timestamp())
        is_json = self.options.run.json_format is not None
        return ChatCompletionBuilder(
            self.sent,
            model=self.options.model,
            created=created,
            functions=self.options.run.client_tools,
            streams=self.options.stream and is_json,
            holds=self.options.checked and is_json,
            index=index,
        )

    async def load_arguments(self, ref: BlobRef) -> str:
        """Return a call's arguments that were too large for a part."""
        blob = await self.context.blobs.service.find(ref.blob_id, self.sent.thread_id)
        return (await read_whole(self.context.blobs.service, blob)).decode()

    def follow(self, sent: SendResult) -> AsyncGenerator[RunUpdate]:
        """Yield the parts of a run, and an empty update for a keep-alive."""
        run = FollowedRun(thread_id=sent.thread_id, run_id=sent.run_id, queued_at=sent.revision)
        return follow_run(self.context, run, self.caller)


async def complete(request: CompletionRequest, disconnected: Callable[[], Coroutine[Any, Any, None]]) -> dict[str, Any]:
    """Return the completion when the run has ended. `disconnected` returns when the client has closed the connection.

    Raises `RunFailed` if the run fails, or if the client disconnects.
    """
    builders = request.builders()
    if not await is_read(_read_all(request, builders), disconnected):
        if request.options.cancels and not request.context.process.stopping.is_set():
            await _cancel_run(request)
        raise RunFailed("canceled", CLIENT_GONE)
    completion, first = join(builders), builders[0]
    assert first.finish is not None
    return completion | {"khala": request.extension | {"steps": first.steps, "reason": first.finish.reason}}


async def is_read(reading: Coroutine[Any, Any, None], disconnected: Callable[[], Coroutine[Any, Any, None]]) -> bool:
    """Return whether `reading` has ended before the client closed the connection. Raises what `reading` raises."""
    tasks = asyncio.create_task(reading), asyncio.create_task(disconnected())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
        return tasks[0].done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _read_all(request: CompletionRequest, builders: Sequence[ChatCompletionBuilder]) -> None:
    async with _cancel_unread(request, builders):
        for sent, builder in zip(request.runs, builders, strict=True):
            async with aclosing(request.follow(sent)) as updates:
                async for update in updates:
                    await builder.add(update.parts, request.load_arguments)
            builder.raise_failure()


async def stream_chunks(request: CompletionRequest) -> AsyncGenerator[str]:
    """Stream the completion as OpenAI's chunks. A stream that ends without `[DONE]` is incomplete."""
    builders = request.builders()
    async with _cancel_on_disconnect(request, lambda: _has_ended(builders)):
        try:
            async with _cancel_unread(request, builders):
                for sent, builder in zip(request.runs, builders, strict=True):
                    async with aclosing(_choice_events(request, sent, builder)) as events:
                        async for event in events:
                            yield event
        except RunFailed as failed:
            yield _event(errors.run_error(failed))
            return
        except KhalaError as error:
            log.warning("completion_stream_failed", run_id=str(request.sent.run_id), error=error.message)
            yield _event(errors.run_error(RunFailed(error.code, error.message)))
            return
        if request.options.usage:
            yield _event(builders[0].usage_chunk(total_usage(builders)))
        yield DONE


def _has_ended(builders: Sequence[ChatCompletionBuilder]) -> bool:
    return builders[-1].finish is not None or any(builder.has_failed for builder in builders)


async def _choice_events(
    request: CompletionRequest, sent: SendResult, builder: ChatCompletionBuilder
) -> AsyncGenerator[str]:
    first = builder.chunk({"role": "assistant", "content": ""})
    yield _event(first | {"khala": request.extension} if sent is request.sent else first)
    async with aclosing(request.follow(sent)) as updates:
        async for update in updates:
            part, key = update.text_part, builder.text_key
            if part is not None and key is not None:
                text, event = update.derive(key, partial(_text_chunk, builder, part))
                builder.add_text(text)
                yield event
                continue
            deltas = await builder.add(update.parts, request.load_arguments)
            if not update.parts or (request.options.checked and not deltas):
                yield KEEP_ALIVE
            for delta in deltas:
                yield _event(builder.chunk(delta))
    yield _event(builder.chunk({}, builder.finish_reason))


def _text_chunk(builder: ChatCompletionBuilder, part: Part) -> tuple[str, str]:
    """Return the text of a delta, and its chunk, which all streams of the choice share."""
    data = part.read()
    text = data.text if isinstance(data, TextDelta) else ""
    return text, _event(builder.chunk({"content": text})) if text else KEEP_ALIVE


async def stream_events(request: CompletionRequest) -> AsyncGenerator[str]:
    """Stream the steps and the text of an autopilot run. A stream that ends without `[DONE]` is incomplete."""
    encoder = EventEncoder(request.sent)
    async with _cancel_on_disconnect(request, lambda: encoder.ended):
        start = encoder.start(max_steps=request.options.run.step_limit, model=request.options.model)
        yield _event(msgspec.structs.replace(start, ignored=request.options.ignored))
        try:
            async with aclosing(request.follow(request.sent)) as updates:
                async for update in updates:
                    if not update.parts:
                        yield KEEP_ALIVE
                    for part, data in without_failure_text(update.parts):
                        for event in encoder.encode(data, part.created_at):
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


@asynccontextmanager
async def _cancel_unread(request: CompletionRequest, builders: Sequence[ChatCompletionBuilder]) -> AsyncIterator[None]:
    """Cancel the runs of further choices when one has failed: neither this response nor that to a retry has them."""
    try:
        yield
    except RunFailed:
        if any(builder.has_failed for builder in builders):
            unread = [sent for sent, builder in zip(request.runs, builders, strict=True) if builder.finish is None]
            await _cancel(request, unread)
        raise


async def _cancel_run(request: CompletionRequest) -> None:
    await _cancel(request, request.runs, unless_joined=True)


async def _cancel(request: CompletionRequest, queued: Sequence[SendResult], *, unless_joined: bool = False) -> None:
    """Cancel these runs. Shielded, because the task that serves a disconnected client is being cancelled.

    With `unless_joined`, they continue if a retry has joined them.
    """
    with anyio.move_on_after(CANCEL_TIMEOUT_SECONDS, shield=True) as scope:
        try:
            if not unless_joined or await _release(request):
                for sent in reversed(queued):  # So that no further one begins.
                    await runs.cancel(request.context.db, sent.run_id, request.caller)
        except KhalaError as error:
            log.warning("run_cancel_failed", run_id=str(request.sent.run_id), error=error.message)
    if scope.cancelled_caught:
        log.warning("run_cancel_failed", run_id=str(request.sent.run_id), error="The cancellation timed out.")


async def _release(request: CompletionRequest) -> bool:
    """Return whether the run can be cancelled: no retry has joined it. A later retry starts another run."""
    return request.options.identity is None or await completion_requests.release(request.context.db, request.accepted)


def _event(body: Any) -> str:
    return encode_event(msgspec.json.encode(body).decode())
