"""Creates threads, runs and leases directly in the store, without a server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from uuid import UUID

from khala.domain import ids
from khala.domain.access import Caller, key_hash
from khala.domain.chat import RunOptions, SendResult
from khala.domain.flush_policy import FlushPolicy
from khala.domain.fold import Content
from khala.domain.parts import Finish, Notice, PartData, TextDelta, TokenUsage, encode
from khala.store.postgres.database import Database
from khala.store.runs import run_queue
from khala.store.runs.endings import RunEnding
from khala.store.runs.group_commit import LocalFeed, WakeBus, Writer
from khala.store.runs.leases import Lease
from khala.store.runs.parts import Batch, append
from khala.store.runs.run_queue import ClaimedRun
from khala.store.threads import sends, threads
from khala.store.threads.sends import SendLimits, SendRequest

KEY = "k" * 40
CALLER = Caller(anon_key_hash=key_hash(KEY))
HIGH_LIMITS = SendLimits(per_owner=1000, waiting=10_000)
PROMPT = FlushPolicy()
"""The default policy of flushes."""


async def new_thread(db: Database, *, welcome: str = "") -> UUID:
    """A thread that `CALLER` may open."""
    thread, _ = await threads.create(db, ids.new(), CALLER, title=None, welcome=welcome)
    return thread.id


async def revision_of(db: Database, thread_id: UUID) -> int:
    """The thread's revision."""
    async with db.driver() as driver:
        return int(await driver.fetchval("SELECT revision FROM threads WHERE id = $1", thread_id))


async def ask(
    db: Database,
    thread_id: UUID,
    text: str = "?",
    *,
    limits: SendLimits = HIGH_LIMITS,
    caller: Caller | None = None,
    key: str = KEY,
    **options: str,
) -> SendResult:
    """Send a message by this caller or key. By default it is queued behind active runs."""
    chosen = RunOptions(**({"if_busy": "queue"} | options))  # type: ignore[arg-type]
    question = SendRequest(thread_id=thread_id, message_id=ids.new(), text=text, options=chosen)
    requester = caller or Caller(anon_key_hash=key_hash(key))
    sent, _ = await sends.send(db, question, requester, limits)
    return sent


async def claim(db: Database, *, most: int = 100, owner: str = "test", lease: float = 30.0) -> list[ClaimedRun]:
    """Claim queued runs."""
    async with db.driver() as driver:
        return await run_queue.claim(driver, most=most, owner=owner, lease_seconds=lease)


async def lease_of(db: Database, thread_id: UUID) -> Lease:
    """Send to the thread and claim the run."""
    sent = await ask(db, thread_id)
    return next(one.lease for one in await claim(db) if one.lease.run_id == sent.run_id)


def batch(lease: Lease, first: int, *parts: PartData | str) -> Batch:
    """Parts from seq `first` on; plain text stands for a text delta."""
    data = [TextDelta(text=part) if isinstance(part, str) else part for part in parts]
    return Batch(lease=lease, parts=[(first + at, *encode(part)) for at, part in enumerate(data)])


def ending(lease: Lease, first: int, content: Content) -> Batch:
    """The finish of a run, at seq `first`."""
    finish = Finish(reason="stop", usage=TokenUsage(input_tokens=1, output_tokens=2))
    last = batch(lease, first, finish)
    end = RunEnding(status="final", finish=finish, content=content, seq=first + 1)
    return Batch(lease=lease, parts=last.parts, ending=end)


async def write(db: Database, *batches: Batch) -> dict[UUID, int]:
    """Append, as the writer does: a batch whose thread is locked is tried again. Returns, by run, the new parts."""
    stored: dict[UUID, int] = {}
    waiting = list(batches)
    async with asyncio.timeout(30):
        while waiting:
            async with db.driver() as driver:
                result = await append(driver, waiting)
            stored |= result.stored
            waiting = [batch for batch in waiting if batch.lease.run_id in result.busy]
            await asyncio.sleep(0.01 if waiting else 0)
    return stored


def notice() -> Notice:
    """A part without text."""
    return Notice(code="resumed", message="Goes on.")


@contextlib.asynccontextmanager
async def writing(
    db: Database, policy: FlushPolicy = PROMPT, *, bus: WakeBus | None = None, local: LocalFeed | None = None
) -> AsyncIterator[Writer]:
    """A writer whose loop runs."""
    writer = Writer(db, policy, bus, local)
    task = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        task.cancel()
        await asyncio.wait({task})
