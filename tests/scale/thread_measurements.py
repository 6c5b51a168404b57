"""Measurements of reads: pages of thread lists and of a deep thread, its export, and `khala verify`."""

from datetime import UTC, datetime

from khala.domain.access import Caller, key_hash
from khala.domain.accounts import User
from khala.live.catch_up_reader import CatchUpReader
from khala.live.feeds import ThreadFeed
from khala.store.operations.account_export import export_lines
from khala.store.operations.verify import VerifyProgress, find_differences
from khala.store.threads import thread_feed, thread_pages
from tests.scale.deployment import COLLECTOR_ID, DEEP_THREAD_ID, HISTORIAN_ID
from tests.scale.figures import Figure, usage_figures
from tests.scale.stage import ScaleStage

HISTORIAN = User(id=HISTORIAN_ID, password=False, identities=(), created_at=datetime(2025, 1, 1, tzinfo=UTC))
PAGE_ENTRIES = 50
"""The default `limit` of `GET /threads` and of `GET /threads/{id}/messages`."""
THREADS_TARGET_BUFFERS = 300.0
BEFORE_TARGET_BUFFERS = 300.0
USER = Caller(user_id=COLLECTOR_ID)
USER_WITH_KEY = Caller(user_id=COLLECTOR_ID, anon_key_hash=key_hash("invented" * 8))
TWO_KEYS = Caller(anon_key_hash=key_hash("invented" * 8), share_key_hash=key_hash("invented" * 9))
NEWEST_MESSAGE = "SELECT id FROM messages WHERE thread_id = $1 ORDER BY position DESC OFFSET $2 LIMIT 1"


async def measure_thread_list(stage: ScaleStage) -> list[Figure]:
    """A page of `GET /threads`: the first and a deep one with one credential, and the first with two credentials."""
    size = f"{stage.size.listed:,} threads"
    first = await stage.meter.repeated(
        lambda: thread_pages.list_page(stage.db, USER, before=None, limit=PAGE_ENTRIES + 1)
    )
    page = await thread_pages.list_page(stage.db, USER, before=None, limit=stage.size.listed // 2)
    position = (page[-1].created_at, page[-1].id)
    deep = await stage.meter.repeated(
        lambda: thread_pages.list_page(stage.db, USER, before=position, limit=PAGE_ENTRIES + 1)
    )
    both = await stage.meter.repeated(
        lambda: thread_pages.list_page(stage.db, USER_WITH_KEY, before=None, limit=PAGE_ENTRIES + 1)
    )
    keys = await stage.meter.repeated(
        lambda: thread_pages.list_page(stage.db, TWO_KEYS, before=None, limit=PAGE_ENTRIES + 1)
    )
    return [
        *usage_figures("thread list page, one credential", size, first, buffers=THREADS_TARGET_BUFFERS),
        *usage_figures("thread list page, half way", size, deep, buffers=THREADS_TARGET_BUFFERS),
        *usage_figures("thread list page, two credentials", size, both, buffers=THREADS_TARGET_BUFFERS),
        *usage_figures(
            "thread list page, two invented keys", f"{stage.size.threads:,} threads of all", keys,
            buffers=THREADS_TARGET_BUFFERS,
        ),
    ]  # fmt: skip


async def measure_older_messages(stage: ScaleStage) -> list[Figure]:
    """`messages?before=`, half way back in the deep thread."""
    back = stage.size.deep_messages // 2
    async with stage.connection() as driver:
        before = await driver.fetchval(NEWEST_MESSAGE, DEEP_THREAD_ID, back)

    async def read() -> None:
        async with stage.db.snapshot() as driver:
            found, more = await thread_feed.read_older(driver, DEEP_THREAD_ID, before=before, limit=PAGE_ENTRIES)
        assert len(found) == PAGE_ENTRIES
        assert more

    usage = await stage.meter.repeated(read)
    return usage_figures("older messages", f"{back:,} back", usage, buffers=BEFORE_TARGET_BUFFERS)


async def measure_subscription(stage: ScaleStage) -> list[Figure]:
    """The first frame of a subscription without `after` to the deep thread."""
    reader, feed = CatchUpReader(stage.db), ThreadFeed()

    async def read() -> None:
        assert await reader.read(feed, DEEP_THREAD_ID, -1) is not None

    usage = await stage.meter.repeated(read)
    return usage_figures("subscribe without after", f"{stage.size.deep_messages:,} messages", usage)


async def measure_export(stage: ScaleStage) -> list[Figure]:
    """The export of the user whose only thread is the deep one."""

    async def export() -> None:
        lines = 0
        async for _ in export_lines(stage.db, HISTORIAN):
            lines += 1
        assert lines > stage.size.deep_messages

    return usage_figures("export of a thread", f"{stage.size.deep_runs:,} runs", await stage.meter.once(export))


async def measure_verification(stage: ScaleStage) -> list[Figure]:
    """`khala verify`, which also shows that the filled database is consistent. Raises `RuntimeError` if it is not."""
    progress = VerifyProgress()

    async def verify() -> None:
        async for difference in find_differences(stage.db, progress):
            raise RuntimeError(f"the filled database is inconsistent: {difference.place}: {difference.problem}")

    usage = await stage.meter.once(verify)
    return usage_figures("verify", f"{progress.answers:,} answers", usage)
