"""Streams the answer of a run as chunks of the AI SDK's UI message stream."""

from collections.abc import AsyncGenerator, Hashable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
import structlog

from khala.api.ai_sdk.chunk_encoder import ChunkEncoder, StreamedRun, UiChunk
from khala.api.ai_sdk.client_results import EarlierAnswer
from khala.api.ai_sdk.submission import ChatRun
from khala.api.chats.client_arguments import load_arguments
from khala.api.context import Context
from khala.api.http.server_sent_events import KEEP_ALIVE, encode_event
from khala.api.runs.run_follower import FollowedRun, RunUpdate, follow_run, read_parts
from khala.domain.access import Caller
from khala.domain.errors import KhalaError
from khala.domain.parts import Part, TextDelta
from khala.store.runs import runs
from khala.store.tools import approvals

log = structlog.get_logger()

json_encoder = msgspec.json.Encoder()
DONE = encode_event("[DONE]")
HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}


class EncodedChunks:
    """Chunks as JSON, and as server-sent events. Streams of one run share them.

    `positions` are those of the last chunks. Chunks without one are no part of the answer.
    """

    __slots__ = ("_events", "chunks", "encoder", "positions")  # There are many, one for each commit of each run.

    def __init__(self, chunks: Sequence[UiChunk], encoder: ChunkEncoder, positions: Sequence[int] = ()) -> None:
        self.chunks = [json_encoder.encode(chunk).decode() for chunk in chunks]
        unnumbered = len(chunks) - len(positions)
        self.positions: Sequence[int | None] = [*[None] * unnumbered, *positions] if unnumbered else positions
        self.encoder = encoder
        """Continues after these chunks. Streams share it, so each works on a copy."""
        self._events: str | None = None

    @property
    def events(self) -> str:
        """The chunks as server-sent events."""
        if self._events is None:
            self._events = "".join(map(encode_event, self.chunks, self.positions))
        return self._events


class ChunkStream:
    """The stream of one client. It ends with the run, or where the run waits for an approval."""

    def __init__(self, context: Context, caller: Caller, chat: ChatRun) -> None:
        self._context = context
        self._caller = caller
        self._chat = chat
        self._encoder = ChunkEncoder(chat.run)
        self._next_seq = 0
        self._decided_pause = 0
        """The pause that the client has decided. The stream ends at a later one."""

    async def events(self) -> AsyncGenerator[str]:
        """Yield the stream as server-sent events, with `[DONE]` at its end. Without it, the stream is incomplete."""
        async with aclosing(self.chunks()) as batches:
            async for batch in batches:
                yield KEEP_ALIVE if batch is None else batch.events
        yield DONE

    async def chunks(self) -> AsyncGenerator[EncodedChunks | None]:
        """Yield the chunks that were committed together, and None for a keep-alive.

        A stream that the caller may no longer read ends with an `error` chunk.
        """
        yield self._encoded([self._encoder.start()])
        run = self._chat.run
        followed = FollowedRun(thread_id=run.thread_id, run_id=run.run_id, queued_at=self._chat.queued_at)
        try:
            for earlier in self._chat.earlier:
                yield self._encoded(await self._earlier_chunks(earlier))
            async with aclosing(follow_run(self._context, followed, self._caller)) as updates:
                async for update in updates:
                    part = update.text_part
                    if part is not None and self._next_seq and self._encoder.is_in_text:
                        yield self._add_text(update, part)
                        continue
                    yield await self._encode(update)
                    if self._encoder.awaited and await self._is_paused(update):
                        yield self._encoded(self._encoder.pause())
                        return
        except KhalaError as error:
            log.warning("ai_sdk_stream_failed", run_id=str(run.run_id), error=error.message)
            yield self._encoded([{"type": "error", "errorText": error.message}])

    @property
    def _key(self) -> Hashable:
        """All streams of the run have the same encoder at this part."""
        return "ai-sdk", self._chat.run.run_id, self._next_seq

    async def _encode(self, update: RunUpdate) -> EncodedChunks | None:
        if not update.parts and not update.plans:
            return None
        run = self._chat.run
        arguments = await self._load_arguments(run, update.parts)
        if self._chat.decided and not self._next_seq:
            chunks, self._decided_pause = self._encoder.add_decided(update.parts, self._chat.decided, arguments)
            encoded = EncodedChunks(chunks, self._encoder, self._encoder.positions)
        elif arguments:
            encoded = _encode(self._encoder, update, arguments)
        else:
            encoded = update.derive(self._key, lambda: _encode(self._encoder, update, {}))
        self._encoder = encoded.encoder
        if update.parts:
            self._next_seq = update.parts[-1].seq + 1
        return encoded

    def _add_text(self, update: RunUpdate, part: Part) -> EncodedChunks:
        """Encode a text that appends to the open block, as most parts do."""
        encoded = update.derive(self._key, partial(_encode_text, self._encoder, part))
        self._encoder, self._next_seq = encoded.encoder, part.seq + 1
        return encoded

    async def _earlier_chunks(self, earlier: EarlierAnswer) -> list[UiChunk]:
        run = earlier.run
        async with self._context.db.snapshot() as driver:
            await runs.read_authorized(driver, run.run_id, self._caller)
            parts = await read_parts(driver, run.thread_id, run.run_id)
        return earlier.chunks(parts, await self._load_arguments(run, parts))

    async def _is_paused(self, update: RunUpdate) -> bool:
        """Whether the run waits for an approval that nobody has decided, since these parts."""
        encoder = self._encoder
        if not update.parts or encoder.pauses <= self._decided_pause:
            return False
        run = self._chat.run
        async with self._context.db.driver() as driver:
            by_call = await approvals.of_run(driver, run.thread_id, run.run_id)
        return all(by_call[call_id].state == "pending" for call_id in encoder.awaited if call_id in by_call)

    async def _load_arguments(self, run: StreamedRun, parts: Sequence[Part]) -> dict[str, Any]:
        return await load_arguments(self._context.blobs.service, run.thread_id, run.functions, parts)

    def _encoded(self, chunks: Sequence[UiChunk]) -> EncodedChunks:
        return EncodedChunks(chunks, self._encoder)


def _encode_text(before: ChunkEncoder, part: Part) -> EncodedChunks:
    """Encode a text that appends to the open block, as most parts do."""
    encoder, data = before.fork(), part.read()
    text = data.text if isinstance(data, TextDelta) else ""
    chunk = encoder.add_text(part.seq, text)
    return EncodedChunks([chunk], encoder, encoder.positions) if text else EncodedChunks((), encoder)


def _encode(before: ChunkEncoder, update: RunUpdate, arguments: dict[str, Any]) -> EncodedChunks:
    encoder = before.fork()
    chunks = encoder.add(update.parts, arguments)
    # Plans are not part of the answer: a client that resumes gets only those that change from then on.
    plans: list[UiChunk] = [{"type": "data-plan", "data": plan, "transient": True} for plan in update.plans]
    return EncodedChunks([*plans, *chunks], encoder, encoder.positions)
