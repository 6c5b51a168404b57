"""Thread tokens: secrets that give access to one thread for a limited time, without an account.

They are rows of `share_links` of another kind, so access to a thread is decided and revoked as for links. Nobody can
join a thread with one, and the lists of links and members do not have them.
"""

from datetime import timedelta
from typing import Literal
from uuid import UUID

from sqlalchemy import delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain import ids
from khala.domain.access import Action, Caller, thread_token_hash
from khala.domain.accounts import ThreadToken
from khala.domain.errors import Conflict, NotFound
from khala.store.accounts import audit
from khala.store.accounts.account_marks import IS_OWNER_PRESENT
from khala.store.postgres import rows
from khala.store.postgres.database import Database, Driver, driver_of
from khala.store.postgres.retries import retried
from khala.store.runs import requesters
from khala.store.schema.tables import share_links
from khala.store.sharing.sharing import change_access
from khala.store.threads import threads

PREFIX = "khala_thread_"
"""The prefix of all thread tokens, so that people and secret scanners recognise them."""
MAX_TOKENS = 1000
"""Valid tokens of one thread."""

FIND = f"""
    SELECT threads.id FROM share_links JOIN threads ON threads.id = share_links.thread_id
    WHERE key_hash = $1 AND kind = 'token' AND expires_at > clock_timestamp()
      AND threads.deleted_at IS NULL AND {IS_OWNER_PRESENT}
      AND NOT EXISTS (SELECT FROM users WHERE users.id = threads.owner_id AND users.blocked_at IS NOT NULL)
"""
OF_THREAD = """
    SELECT id, role, created_at, expires_at FROM share_links
    WHERE thread_id = $1 AND kind = 'token' AND expires_at > clock_timestamp()
    ORDER BY created_at DESC, id DESC
"""


@retried
async def create(
    db: Database, thread_id: UUID, role: Literal["viewer", "editor"], lifetime: timedelta, caller: Caller
) -> tuple[ThreadToken, str]:
    """A new token of the thread, and its secret, which can't be read again."""
    secret = PREFIX + ids.new_secret()
    row = {"id": ids.new(), "thread_id": thread_id, "role": role, "kind": "token", "created_by": caller.user_id}
    async with db.transaction() as connection:
        await threads.lock_authorized(connection, thread_id, caller, Action.MANAGE_TOKENS)
        mine = (share_links.c.thread_id == thread_id) & (share_links.c.kind == "token")
        await connection.execute(delete(share_links).where(mine, share_links.c.expires_at < func.now()))
        if (await connection.execute(select(func.count()).where(mine))).scalar_one() >= MAX_TOKENS:
            raise Conflict(
                f"A thread has at most {MAX_TOKENS:,} valid tokens. Revoke some, or let them expire earlier."
            )
        made = insert(share_links).values(
            **row, key_hash=thread_token_hash(secret), expires_at=func.clock_timestamp() + lifetime
        )
        token = _token((await connection.execute(made.returning(share_links))).one()._mapping)
        await audit.record(connection, "thread_token_made", caller, thread_id=thread_id, token=str(token.id), role=role)
    return token, secret


async def find(driver: Driver, secret: str) -> Caller | None:
    """The caller with this token; None if it is invalid. The token's role is decided with each access."""
    hashed = thread_token_hash(secret)
    thread_id = await driver.fetchval(FIND, hashed)
    return None if thread_id is None else Caller(share_key_hash=hashed, only_thread=thread_id)


async def of_thread(driver: Driver, thread_id: UUID) -> list[ThreadToken]:
    """The thread's valid tokens, the newest first."""
    return [_token(row) for row in await driver.fetch(OF_THREAD, thread_id)]


@retried
async def revoke(db: Database, thread_id: UUID, token_id: UUID, caller: Caller) -> None:
    """Revoke a token. Subscriptions by it end, and its runs are canceled."""
    async with db.transaction() as connection:
        await threads.lock_authorized(connection, thread_id, caller, Action.MANAGE_TOKENS)
        if not await _delete(connection, thread_id, token_id):
            raise NotFound("There is no such token.")
        await change_access(connection, thread_id)
        await audit.record(connection, "thread_token_revoked", caller, thread_id=thread_id, token=str(token_id))


async def _delete(connection: AsyncConnection, thread_id: UUID, token_id: UUID) -> bool:
    which = (share_links.c.thread_id == thread_id) & (share_links.c.kind == "token") & (share_links.c.id == token_id)
    gone = (await connection.execute(delete(share_links).where(which).returning(share_links.c.key_hash))).first()
    if gone is not None:
        await requesters.cancel_runs_of_links(await driver_of(connection), thread_id, [gone.key_hash])
    return gone is not None


def _token(row: rows.Record) -> ThreadToken:
    return ThreadToken(id=row["id"], role=row["role"], created_at=row["created_at"], expires_at=row["expires_at"])
