"""An answer on its way to whoever asked: as OpenAI's chunks, as events of its rounds, or whole, at its end."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio
import msgspec
import structlog

from khala.api.context import Context
from khala.api.openai import errors
from khala.api.openai.chunks import Answer, without_failure_text
from khala.api.openai.completion_options import CompletionOptions
from khala.api.openai.errors import RunFailed
from khala.api.openai.run_events import Asked, Event, EventEncoder, Paused
from khala.api.openai.run_follower import follow
from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.chat import SendResult
from khala.domain.errors import KhalaError
from khala.domain.parts import BlobRef
from khala.store.runs import completion_requests, detail_tokens, runs
from khala.store.runs.completion_requests import AcceptedRequest
from khala.store.tools import approvals

log = structlog.get_logger()

PING = ": ping\n\n"
DONE = "data: [DONE]\n\n"
PATIENCE = 5.0
"""Seconds that it may take to call a run off whose caller has left."""


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Who has asked for what, and the run that answers."""

    context: Context
    caller: Caller
    options: CompletionOptions
    accepted: AcceptedRequest

    @property
    def sent(self) -> SendResult:
        """What was stored of the request."""
        return self.accepted.sent

    @property
    def about(self) -> dict[str, Any]:
        """What Khala adds to OpenAI's answer: the ids, and the places of the request that were ignored."""
        return {"threadId": self.sent.thread_id, "runId": self.sent.run_id, "ignored": self.options.ignored}

    def answer(self) -> Answer:
        """The answer, of which nothing has come yet."""
        names = [function.name for function in self.options.run.functions]
        created = int(ids.created_at(self.sent.run_id).timestamp())
        return Answer(self.sent, model=self.options.model, created=created, functions=names)

    async def load(self, ref: BlobRef) -> str:
        """Arguments that were too large for a part."""
        blob = await self.context.blobs.service.find(ref.blob_id, self.sent.thread_id)
        async with self.context.blobs.service.read(blob) as chunks:
            return b"".join([chunk async for chunk in chunks]).decode()


async def whole(asking: CompletionRequest, left: Callable[[], Coroutine[Any, Any, None]]) -> dict[str, Any]:
    """The completion, when the run has ended. Raises `RunFailed`. `left` returns when the caller has hung up."""
    answer = asking.answer()
    hearing = asyncio.create_task(_hear(asking, answer))
    leaving = asyncio.create_task(left())
    try:
        await asyncio.wait({hearing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not hearing.done():
            if asking.options.cancels and not asking.context.process.stopping.is_set():
                await _called_off(asking)
            raise RunFailed("canceled", "Whoever asked has hung up.")
        hearing.result()
    finally:
        for task in (hearing, leaving):
            task.cancel()
        await asyncio.wait({hearing, leaving})
    completion = answer.whole()
    assert answer.finish is not None
    return completion | {"khala": asking.about | {"steps": answer.steps, "reason": answer.finish.reason}}


async def _hear(asking: CompletionRequest, answer: Answer) -> None:
    async with aclosing(follow(asking.context, asking.sent, asking.caller)) as news:
        async for parts in news:
            await answer.hear(parts, asking.load)


async def chunks(asking: CompletionRequest) -> AsyncGenerator[str]:
    """The completion as it is written. A stream that ends without `[DONE]` was not told to its end."""
    answer = asking.answer()
    async with _watched(asking, lambda: answer.finish is not None):
        yield _line(answer.chunk({"role": "assistant", "content": ""}) | {"khala": asking.about})
        try:
            async with aclosing(follow(asking.context, asking.sent, asking.caller)) as news:
                async for parts in news:
                    if not parts:
                        yield PING
                    for delta in await answer.hear(parts, asking.load):
                        yield _line(answer.chunk(delta))
            yield _line(answer.chunk({}, answer.reason))
        except RunFailed as failed:
            yield _line(errors.of_run(failed))
            return
        except KhalaError as error:
            log.warning("stream_cut", run_id=str(asking.sent.run_id), error=error.message)
            yield _line(errors.of_run(RunFailed(error.code, error.message)))
            return
        if asking.options.usage:
            yield _line(answer.usage_chunk())
        yield DONE


async def events(asking: CompletionRequest) -> AsyncGenerator[str]:
    """The run's rounds and what it says, as it goes. A stream that ends without `[DONE]` was cut."""
    narrator = EventEncoder(asking.sent)
    async with _watched(asking, lambda: narrator.ended):
        start = narrator.start(max_steps=asking.options.run.step_limit, model=asking.options.model)
        yield _line(msgspec.structs.replace(start, ignored=asking.options.ignored))
        try:
            async with aclosing(follow(asking.context, asking.sent, asking.caller)) as news:
                async for parts in news:
                    if not parts:
                        yield PING
                    for data, at in without_failure_text(parts):
                        for event in narrator.take(data, at):
                            yield _line(event)
                        if narrator.untold:
                            yield _line(narrator.tell(await _tokens(asking, narrator.untold)))
                    if awaited := narrator.awaited():
                        yield _line(await _paused(asking, awaited))
        except KhalaError as error:
            log.warning("stream_cut", run_id=str(asking.sent.run_id), error=error.message)
            return
        yield DONE


async def _tokens(asking: CompletionRequest, calls: Sequence[str]) -> dict[str, str]:
    async with asking.context.db.driver() as driver:
        return await detail_tokens.create(
            driver,
            thread_id=asking.sent.thread_id,
            run_id=asking.sent.run_id,
            calls=calls,
            lasts=asking.context.threads.detail_token_lifetime,
        )


async def _paused(asking: CompletionRequest, waits: frozenset[str]) -> Event:
    async with asking.context.db.driver() as driver:
        found = await approvals.of_run(driver, asking.sent.thread_id, asking.sent.run_id)
    asked = [
        Asked(tool_call_id=call, tool=one.tool, args=one.args, digest=one.digest, expires_at=one.expires_at)
        for call, one in sorted(found.items())
        if call in waits and one.state == "pending"
    ]
    return Paused(run_id=asking.sent.run_id, approvals=tuple(asked))


@asynccontextmanager
async def _watched(asking: CompletionRequest, ended: Callable[[], bool]) -> AsyncIterator[None]:
    """Call the run off if its caller leaves before the end, and wished so; else it goes on."""
    try:
        yield
    finally:
        if not ended() and asking.options.cancels and not asking.context.process.stopping.is_set():
            await _called_off(asking)


async def _called_off(asking: CompletionRequest) -> None:
    """Whoever asked is gone, and what serves them is being cancelled: this is still to be done."""
    with anyio.move_on_after(PATIENCE, shield=True) as scope:
        try:
            if await _is_left_alone(asking):
                await runs.cancel(asking.context.db, asking.sent.run_id, asking.caller)
        except KhalaError as error:
            log.warning("not_called_off", run_id=str(asking.sent.run_id), error=error.message)
    if scope.cancelled_caught:
        log.warning("not_called_off", run_id=str(asking.sent.run_id), error="It took too long.")


async def _is_left_alone(asking: CompletionRequest) -> bool:
    """Whether no retry has joined the run; from now on, none will: it makes another one."""
    return asking.options.identity is None or await completion_requests.release(asking.context.db, asking.accepted)


def _line(body: Any) -> str:
    return f"data: {msgspec.json.encode(body).decode()}\n\n"
