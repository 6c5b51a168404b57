"""Endpoints of webhooks: where the events of an account's threads, or of all threads, are sent."""

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.errors import Conflict, NotFound, Unauthorized
from khala.domain.webhooks import DEPLOYMENT, SECRET_BYTES, EndpointHealth
from khala.store.accounts import audit
from khala.store.accounts.account_marks import USER_IS_PRESENT
from khala.store.postgres.database import Database, Driver, driver_of
from khala.store.postgres.notifications import WEBHOOKS_CHANNEL, notify
from khala.store.postgres.retries import retried

MAX_DEPLOYMENT_ENDPOINTS = 100
"""Endpoints of the operator."""
LOCK_USER = "SELECT id FROM users WHERE id = $1 FOR NO KEY UPDATE"
COUNT = "SELECT count(*) FROM webhook_endpoints WHERE scope_id = $1 AND deleted_at IS NULL"
INSERT = """
    INSERT INTO webhook_endpoints (id, scope_id, url, description, events, include_content, secret)
    VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING *, clock_timestamp() AS now
"""
READ = """
    SELECT *, clock_timestamp() AS now FROM webhook_endpoints
    WHERE scope_id = $1 AND id = $2 AND deleted_at IS NULL
"""
LOCK = f"{READ} FOR NO KEY UPDATE"
OF_SCOPE = """
    SELECT *, clock_timestamp() AS now FROM webhook_endpoints
    WHERE scope_id = $1 AND deleted_at IS NULL ORDER BY created_at, id
"""
UPDATE = """
    UPDATE webhook_endpoints SET url = $2, description = $3, events = $4, include_content = $5, is_enabled = $6,
           disabled_reason = CASE WHEN $6 THEN NULL ELSE disabled_reason END,
           failures = CASE WHEN $7 THEN 0 ELSE failures END,
           failing_since = CASE WHEN $7 THEN NULL ELSE failing_since END,
           paused_until = CASE WHEN $7 THEN NULL ELSE paused_until END
    WHERE id = $1 RETURNING *, clock_timestamp() AS now
"""
"""$7: begin anew, because the endpoint was enabled or has another address."""
ROTATE = """
    UPDATE webhook_endpoints SET previous_secret = secret, secret = $2,
           previous_expires_at = clock_timestamp() + make_interval(secs => $3)
    WHERE id = $1
"""
REMOVED = """
    is_enabled = false, deleted_at = clock_timestamp(), url = '', description = '', secret = '', previous_secret = NULL
"""
REMOVE = f"UPDATE webhook_endpoints SET {REMOVED} WHERE scope_id = $1 AND id = $2 AND deleted_at IS NULL RETURNING id"
REMOVE_ALL = f"""
    UPDATE webhook_endpoints SET {REMOVED} WHERE id IN (
        SELECT id FROM webhook_endpoints WHERE scope_id = $1 AND deleted_at IS NULL ORDER BY id FOR NO KEY UPDATE)
"""


class EndpointConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that the owner of an endpoint decides. `events` are types; none for all."""

    url: str
    description: str = ""
    events: Sequence[str] = ()
    include_content: bool = False
    is_enabled: bool = True


class StoredEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint as at the time `read_at`. `secrets` are those that sign now, the newest first."""

    id: UUID
    scope_id: UUID
    config: EndpointConfig
    health: EndpointHealth
    secrets: Sequence[bytes]
    created_at: datetime
    read_at: datetime


def stored_endpoint(row: Mapping[Any, Any]) -> StoredEndpoint:
    """Return a row of `webhook_endpoints`, with the column `now`."""
    previous = row["previous_secret"]
    signs = previous is not None and row["previous_expires_at"] > row["now"]
    return StoredEndpoint(
        id=row["id"],
        scope_id=row["scope_id"],
        config=EndpointConfig(
            url=row["url"],
            description=row["description"],
            events=tuple(row["events"]),
            include_content=row["include_content"],
            is_enabled=row["is_enabled"],
        ),
        health=EndpointHealth(
            failures=row["failures"],
            failing_since=row["failing_since"],
            paused_until=row["paused_until"],
            disabled_reason=row["disabled_reason"],
        ),
        secrets=(row["secret"], previous) if signs else (row["secret"],),
        created_at=row["created_at"],
        read_at=row["now"],
    )


@retried
async def create(db: Database, scope_id: UUID, config: EndpointConfig, *, caller: Caller, limit: int) -> StoredEndpoint:
    """Create an endpoint, which gets the events of later transactions. Raises `Conflict` for too many."""
    async with db.transaction() as connection:
        await audit.record(connection, "webhook_created", caller, url=config.url)
        driver = await driver_of(connection)
        if scope_id != DEPLOYMENT:
            await driver.fetchval(LOCK_USER, scope_id)
            if not await driver.fetchval(USER_IS_PRESENT, scope_id):
                raise Unauthorized("This account was deleted.")
        if await driver.fetchval(COUNT, scope_id) >= limit:
            raise Conflict(f"There may be at most {limit} webhooks. Delete one first.")
        secret = secrets.token_bytes(SECRET_BYTES)
        values = ids.new(), scope_id, config.url, config.description, list(config.events), config.include_content
        return stored_endpoint(await driver.fetchrow(INSERT, *values, secret))


async def read(driver: Driver, scope_id: UUID, endpoint_id: UUID) -> StoredEndpoint:
    """Return an endpoint of this scope. Raises `NotFound`."""
    return _found(await driver.fetchrow(READ, scope_id, endpoint_id))


async def lock(driver: Driver, scope_id: UUID, endpoint_id: UUID) -> StoredEndpoint:
    """As `read`, and lock the endpoint until the transaction ends."""
    return _found(await driver.fetchrow(LOCK, scope_id, endpoint_id))


async def of_scope(driver: Driver, scope_id: UUID) -> list[StoredEndpoint]:
    """Return all endpoints of this scope, the oldest first."""
    return [stored_endpoint(row) for row in await driver.fetch(OF_SCOPE, scope_id)]


@retried
async def change(
    db: Database, scope_id: UUID, endpoint_id: UUID, changes: Mapping[str, Any], *, caller: Caller
) -> StoredEndpoint:
    """Change fields of the endpoint's `EndpointConfig`. One that is enabled again begins without failures."""
    async with db.transaction() as connection:
        await audit.record(connection, "webhook_changed", caller, webhook=str(endpoint_id), fields=sorted(changes))
        driver = await driver_of(connection)
        before = await lock(driver, scope_id, endpoint_id)
        config = msgspec.structs.replace(before.config, **changes)
        anew = config.url != before.config.url or (config.is_enabled and not before.config.is_enabled)
        values = config.url, config.description, list(config.events), config.include_content, config.is_enabled
        row = await driver.fetchrow(UPDATE, endpoint_id, *values, anew)
        await notify(connection, WEBHOOKS_CHANNEL, "")
        return _found(row)


@retried
async def rotate_secret(
    db: Database, scope_id: UUID, endpoint_id: UUID, overlap_seconds: int, *, caller: Caller
) -> StoredEndpoint:
    """Give the endpoint a new secret. The one before signs, too, for so many seconds; an older one no longer."""
    async with db.transaction() as connection:
        await audit.record(connection, "webhook_secret_rotated", caller, webhook=str(endpoint_id))
        driver = await driver_of(connection)
        await lock(driver, scope_id, endpoint_id)
        await driver.execute(ROTATE, endpoint_id, secrets.token_bytes(SECRET_BYTES), float(overlap_seconds))
        return await read(driver, scope_id, endpoint_id)


@retried
async def remove(db: Database, scope_id: UUID, endpoint_id: UUID, *, caller: Caller) -> None:
    """Delete an endpoint. Its secrets are gone at once, and its deliveries are purged later. Raises `NotFound`."""
    async with db.transaction() as connection:
        await audit.record(connection, "webhook_deleted", caller, webhook=str(endpoint_id))
        if await (await driver_of(connection)).fetchval(REMOVE, scope_id, endpoint_id) is None:
            raise NotFound("There is no such webhook.")


async def remove_all(driver: Driver, scope_id: UUID) -> None:
    """Delete all endpoints of an account, in the caller's transaction, which has locked the user."""
    await driver.execute(REMOVE_ALL, scope_id)


def _found(row: Mapping[Any, Any] | None) -> StoredEndpoint:
    if row is None:
        raise NotFound("There is no such webhook.")
    return stored_endpoint(row)
