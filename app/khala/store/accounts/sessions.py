"""Sessions: signed-in browsers, each identified by the hash of its cookie's secret."""

from datetime import timedelta
from uuid import UUID

from sqlalchemy import delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain import ids
from khala.domain.access import Caller, key_hash
from khala.domain.accounts import Session
from khala.domain.errors import Forbidden, NotFound, Unauthorized
from khala.store.accounts import audit
from khala.store.accounts.account_marks import BLOCKED, is_blocked
from khala.store.postgres.database import (
    Database,
    Driver,
    driver_of,
)
from khala.store.postgres.notifications import (
    CREDENTIALS_CHANNEL,
    notify,
)
from khala.store.postgres.retries import retried
from khala.store.schema.tables import passwords, sessions
from khala.store.threads import thread_lists

LIFETIME = timedelta(days=30)
"""The maximum lifetime of a session."""
MAX_SESSIONS = 50
"""Sessions of one user. The oldest end when there are more."""

FIND = """
    SELECT sessions.id, sessions.user_id, sessions.expires_at, users.name,
           sessions.seen_at < clock_timestamp() - interval '10 minutes' AS stale
    FROM sessions JOIN users ON users.id = sessions.user_id
    WHERE secret_hash = $1 AND expires_at > clock_timestamp() AND users.blocked_at IS NULL
"""

DELETE_OLDEST = f"""
    DELETE FROM sessions WHERE id IN (
        SELECT id FROM sessions WHERE user_id = $1 ORDER BY created_at DESC, id DESC OFFSET {MAX_SESSIONS})
"""


@retried
async def begin(
    db: Database,
    user_id: UUID,
    caller: Caller,
    *,
    user_agent: str | None,
    id_token: str | None = None,
    proof: str | None = None,
) -> str:
    """Begin a session, and end the caller's previous one. Returns the secret for the cookie.

    `proof` is the hash of the password that was verified. Raises `Unauthorized` if the password has changed since.
    """
    secret = ids.new_secret()
    row = {
        "id": ids.new(),
        "user_id": user_id,
        "secret_hash": key_hash(secret),
        "user_agent": user_agent,
        "network": caller.network,
        "id_token": id_token,
    }
    async with db.transaction() as connection:
        # Ending all sessions of a user and deleting an account take the same lock.
        await connection.execute(select(func.now()))
        for locked_id in sorted({user_id, caller.user_id or user_id}):
            await thread_lists.lock_user(await driver_of(connection), locked_id)
        if await is_blocked(await driver_of(connection), user_id):
            raise Forbidden(BLOCKED)
        if proof is not None:
            query = select(passwords.c.hash).where(passwords.c.user_id == user_id).with_for_update(read=True)
            if (await connection.execute(query)).scalar_one_or_none() != proof:
                raise Unauthorized("The password was changed just now. Sign in again.")
        await connection.execute(insert(sessions).values(**row, expires_at=func.now() + LIFETIME))
        if caller.credential is not None:
            await _end(connection, caller.user_id or user_id, sessions.c.id == caller.credential)
        await connection.exec_driver_sql(DELETE_OLDEST, (user_id,))
        signed_in_caller = Caller(user_id=user_id, network=caller.network)
        await audit.record(connection, "signed_in", signed_in_caller, session=str(row["id"]))
    return secret


async def find(driver: Driver, secret: str) -> Caller | None:
    """The caller with this session secret; None if it is invalid."""
    row = await driver.fetchrow(FIND, key_hash(secret))
    if row is None:
        return None
    if row["stale"]:
        await driver.execute("UPDATE sessions SET seen_at = now() WHERE id = $1", row["id"])
    return Caller(user_id=row["user_id"], name=row["name"], credential=row["id"], expires_at=row["expires_at"])


async def of_user(driver: Driver, user_id: UUID, current: UUID | None) -> list[Session]:
    """All sessions of the user, the newest first."""
    query = "SELECT * FROM sessions WHERE user_id = $1 AND expires_at > now() ORDER BY created_at DESC, id DESC"
    return [
        Session(
            id=row["id"],
            current=row["id"] == current,
            user_agent=row["user_agent"],
            network=row["network"],
            created_at=row["created_at"],
            seen_at=row["seen_at"],
            expires_at=row["expires_at"],
        )
        for row in await driver.fetch(query, user_id)
    ]


@retried
async def end(db: Database, session_id: UUID, caller: Caller) -> str | None:
    """End one of the caller's sessions. Returns the ID token of its sign-in at an OpenID Provider, if there was one."""
    async with db.transaction() as connection:
        where = (sessions.c.id == session_id) & (sessions.c.user_id == caller.user_id)
        ended = await connection.execute(delete(sessions).where(where).returning(sessions.c.id_token))
        row = ended.first()
        if row is None:
            raise NotFound("There is no such session.")
        await notify(connection, CREDENTIALS_CHANNEL, str(caller.user_id))
        await audit.record(connection, "session_ended", caller, session=str(session_id))
        id_token: str | None = row.id_token
        return id_token


async def end_others(connection: AsyncConnection, user_id: UUID, current: UUID | None) -> None:
    """End all sessions of the user except `current`."""
    await _end(connection, user_id, (sessions.c.user_id == user_id) & (sessions.c.id.is_distinct_from(current)))


async def _end(connection: AsyncConnection, user_id: UUID, which: object) -> None:
    await connection.execute(delete(sessions).where(which))  # type: ignore[arg-type]
    await notify(connection, CREDENTIALS_CHANNEL, str(user_id))
