"""Reads a response from its run: as it is, when it has ended, or as a stream of events from any of them on."""

from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any

import anyio
import msgspec
import structlog

from khala.api.context import Context
from khala.api.http.server_sent_events import KEEP_ALIVE, encode_event
from khala.api.openai.errors import RunFailed
from khala.api.openai.responses import CLIENT_GONE, is_read
from khala.api.openai.types import JsonObject
from khala.api.responses.large_arguments import LargeArguments
from khala.api.responses.response_encoder import CANCELED, ResponseEncoder
from khala.api.responses.response_header import header
from khala.api.runs.run_follower import FollowedRun, RunUpdate, follow_run, read_parts
from khala.domain.access import Caller
from khala.domain.errors import KhalaError
from khala.domain.parts import Part, TextDelta
from khala.store.runs.response_runs import ResponseRun

log = structlog.get_logger()

json_encoder = msgspec.json.Encoder()


class ResponseReader:
    """Reads one response for one caller. `queued_at` is the revision that queued its run, if it was queued just now."""

    def __init__(self, context: Context, caller: Caller, found: ResponseRun, *, queued_at: int | None = None) -> None:
        self._context = context
        self._caller = caller
        self._found = found
        self._run = FollowedRun(thread_id=found.run.thread_id, run_id=found.run.id, queued_at=queued_at)
        self._arguments = LargeArguments(context, found.run.thread_id, found.run.id)
        self._encoder = ResponseEncoder(header(found.run.thread_id, found.run.id, found.options))

    async def read(self) -> JsonObject:
        """Return the response as it is."""
        async with self._context.db.snapshot() as driver:
            parts = await read_parts(driver, self._run.thread_id, self._run.run_id)
        self._encoder.add(parts, await self._arguments.load(parts))
        return self._encoder.response("queued" if self._found.run.status == "queued" else "in_progress")

    async def items(self) -> list[JsonObject]:
        """Return the items of the output as they are."""
        return list((await self.read())["output"])

    async def wait(self, disconnected: Callable[[], Coroutine[Any, Any, None]]) -> JsonObject:
        """Return the response when it has ended. `disconnected` returns when the client has closed the connection.

        Raises `RunFailed` if it fails or is canceled. It continues if the client disconnects.
        """
        if not await is_read(self._read_all(), disconnected):
            raise RunFailed(CANCELED, CLIENT_GONE)
        failure = self._encoder.failure
        if failure is not None:
            raise RunFailed(*failure)
        return self._encoder.response()

    async def read_end(self, timeout_seconds: float) -> JsonObject:
        """Return the response when it has ended, or as it is at the timeout."""
        with anyio.move_on_after(timeout_seconds):
            await self._read_all()
        return self._encoder.response()

    async def events(self, starting_after: int = -1) -> AsyncGenerator[str]:
        """Yield the events after this sequence number, up to the end of the response."""
        yield _encode(self._encoder.start(), starting_after) or KEEP_ALIVE
        try:
            async with aclosing(follow_run(self._context, self._run, self._caller)) as updates:
                async for update in updates:
                    part = update.text_part
                    if part is not None and self._encoder.is_in_message:
                        yield self._add_text(update, part, starting_after) or KEEP_ALIVE
                        continue
                    events = self._encoder.add(update.parts, await self._arguments.load(update.parts))
                    yield _encode(events, starting_after) or KEEP_ALIVE
        except KhalaError as error:
            log.warning("response_stream_failed", run_id=str(self._run.run_id), error=error.message)
            yield _encode([self._encoder.error_event(error.code, error.message)], -1)

    def _add_text(self, update: RunUpdate, part: Part, starting_after: int) -> str:
        """Return the event of a text delta, which all streams of the response share."""
        number = self._encoder.sequence_number
        text, event = update.derive(("response", part.run_id, number), lambda: self._text_event(part))
        if not text:
            return ""
        self._encoder.add_text(text)
        return event if number > starting_after else ""

    def _text_event(self, part: Part) -> tuple[str, str]:
        data = part.read()
        text = data.text if isinstance(data, TextDelta) else ""
        return text, _encode([self._encoder.text_event(text)], -1)

    async def _read_all(self) -> None:
        async with aclosing(follow_run(self._context, self._run, self._caller)) as updates:
            async for update in updates:
                self._encoder.add(update.parts, await self._arguments.load(update.parts))


def _encode(events: Sequence[JsonObject], starting_after: int) -> str:
    return "".join(
        encode_event(json_encoder.encode(event).decode(), kind=event["type"])
        for event in events
        if event["sequence_number"] > starting_after
    )
