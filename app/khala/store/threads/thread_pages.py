"""Pages of a caller's threads, with where the caller keeps them."""

from datetime import UTC, datetime
from uuid import UUID

import msgspec

from khala.domain.access import Caller
from khala.domain.chat import ListedThread
from khala.store.accounts.account_marks import IS_OWNER_PRESENT
from khala.store.postgres import rows
from khala.store.postgres.database import Database

LAST_POSITION = datetime.max.replace(tzinfo=UTC), UUID(int=2**128 - 1)
"""Behind every thread in the order of thread lists."""

LISTING = """
    LEFT JOIN listings AS mine ON mine.user_id = $1 AND mine.thread_id = threads.id AND NOT mine.gone
    LEFT JOIN guest_listings AS guest ON guest.thread_id = threads.id AND threads.anon_key_hash = $2
"""
"""Where the account keeps a thread, else where the holder of its key does."""
PINNED = "coalesce(mine.pinned, guest.pinned, false)"
ARCHIVED = "coalesce(mine.archived, guest.archived, false)"
FOLDER = "CASE WHEN mine.user_id IS NULL THEN guest.folder ELSE mine.folder END"
IS_LISTED = "NOT EXISTS (SELECT FROM ephemeral_threads WHERE ephemeral_threads.thread_id = threads.id)"
FITS = f"""
    AND coalesce({PINNED} = $7, true) AND coalesce({ARCHIVED} = $8, true)
    AND coalesce(coalesce({FOLDER}, '') = $9, true)
"""


def _listed(joined: str = "", fits: str = "") -> str:
    """The ids of a page's threads. `joined` and `fits` apply a filter to each thread that is read."""
    own = f"""
        SELECT threads.created_at, threads.id FROM threads {joined}
        WHERE owner_id = $1 AND deleted_at IS NULL AND (threads.created_at, threads.id) < ($4, $5)
          AND {IS_LISTED} {fits}
        ORDER BY threads.created_at DESC, threads.id DESC LIMIT $6
    """
    by_role = f"""
        SELECT threads.created_at, threads.id FROM memberships
        JOIN threads ON threads.id = memberships.thread_id {joined}
        WHERE memberships.user_id = $1 AND deleted_at IS NULL AND {IS_OWNER_PRESENT}
          AND (threads.created_at, threads.id) < ($4, $5) {fits}
        ORDER BY threads.created_at DESC, threads.id DESC LIMIT $6
    """
    by_key = f"""
        SELECT threads.created_at, threads.id FROM threads {joined}
        WHERE anon_key_hash = $2 AND deleted_at IS NULL AND (threads.created_at, threads.id) < ($4, $5)
          AND {IS_LISTED} {fits}
        ORDER BY threads.created_at DESC, threads.id DESC LIMIT $6
    """
    by_link = f"""
        SELECT threads.created_at, threads.id FROM share_links
        JOIN threads ON threads.id = share_links.thread_id {joined}
        WHERE key_hash = $3 AND coalesce(expires_at > clock_timestamp(), true) AND deleted_at IS NULL
          AND {IS_OWNER_PRESENT}
          AND (threads.created_at, threads.id) < ($4, $5) {fits}
    """
    return f"""
        ({own}) UNION ({by_role}) UNION ({by_key}) UNION ({by_link})
        ORDER BY created_at DESC, id DESC LIMIT $6
    """


def _page(listed: str) -> str:
    """The threads with these ids, and where the caller keeps them."""
    return f"""
        SELECT {rows.THREAD_COLUMNS}, {PINNED} AS pinned, {ARCHIVED} AS archived, {FOLDER} AS folder
        FROM ({listed}) AS page JOIN threads USING (id) {LISTING}
        ORDER BY threads.created_at DESC, threads.id DESC
    """


LISTED_THREADS = _listed()
"""Each credential has a query of its own, so that each reads one page by an index: a condition with OR would have the
planner scan all threads."""
PAGE = _page(LISTED_THREADS)
FILTERED_PAGE = _page(_listed(LISTING, FITS))


class ThreadFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which threads a page has; None for all. The folder "" stands for no folder."""

    pinned: bool | None = None
    archived: bool | None = None
    folder: str | None = None


NO_FILTER = ThreadFilter()


async def list_page(
    db: Database,
    caller: Caller,
    *,
    before: tuple[datetime, UUID] | None,
    limit: int,
    only: ThreadFilter = NO_FILTER,
) -> list[ListedThread]:
    """The caller's threads, newest first: those on the account's list, and those that a presented key gives access to.

    `before` is the position of the last thread of the previous page.
    """
    arguments = (caller.user_id, caller.anon_key_hash, caller.share_key_hash, *(before or LAST_POSITION), limit)
    async with db.driver() as driver:
        if only == NO_FILTER:
            page = await driver.fetch(PAGE, *arguments)
        else:
            page = await driver.fetch(FILTERED_PAGE, *arguments, only.pinned, only.archived, only.folder)
    return [
        ListedThread(
            **msgspec.structs.asdict(rows.thread(row)),
            pinned=row["pinned"],
            archived=row["archived"],
            folder=row["folder"],
        )
        for row in page
    ]
