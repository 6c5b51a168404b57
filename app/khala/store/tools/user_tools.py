"""Tools that agents wrote for users. A tool is offered after its user has approved it."""

import hashlib
from datetime import datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from khala.domain.chat import WireStruct
from khala.domain.errors import AlreadyDecided, Conflict, NotFound
from khala.domain.tools import ToolPermission
from khala.store.postgres import rows
from khala.store.postgres.database import Database, Driver, driver_of
from khala.store.postgres.retries import retried
from khala.store.schema.tables import user_tools
from khala.store.threads import thread_lists

MAX_USER_TOOLS = 100
"""Tools of one user."""

UserToolState: TypeAlias = Literal["pending", "approved", "rejected"]
ToolLanguage: TypeAlias = Literal["python", "javascript"]


class UserToolDefinition(WireStruct, frozen=True, kw_only=True):
    """A tool without its code; `timeout` in seconds."""

    name: str
    description: str
    parameters: dict[str, Any]
    language: ToolLanguage
    permissions: tuple[ToolPermission, ...] = ()
    timeout: int = 30
    idempotent: bool = False


class UserTool(UserToolDefinition, frozen=True, kw_only=True):
    """A tool as its user sees it. `digest` identifies its definition and code: SHA-256, as hex digits."""

    code: str
    digest: str
    state: UserToolState
    created_at: datetime
    decided_at: datetime | None = None


@retried
async def add(db: Database, user_id: UUID, definition: UserToolDefinition, code: str) -> UserTool:
    """Add a tool, which waits for its user's approval. Raises `Conflict` if the name is taken or there are too many."""
    row = msgspec.structs.asdict(definition) | {"permissions": list(definition.permissions)}
    async with db.transaction() as connection:
        # With the user's lock, the second of two concurrent calls sees the tool of the first one.
        await connection.execute(select(func.now()))
        await thread_lists.lock_user(await driver_of(connection), user_id)
        many = select(func.count()).where(user_tools.c.user_id == user_id)
        if (await connection.execute(many)).scalar_one() >= MAX_USER_TOOLS:
            raise Conflict(f"An account has at most {MAX_USER_TOOLS} tools. Delete one first.")
        new = upsert(user_tools).values(user_id=user_id, code=code, **row).on_conflict_do_nothing()
        made = (await connection.execute(new.returning(user_tools))).first()
        if made is None:
            raise Conflict(f"There is a tool {definition.name} already. Delete it first.")
        return _tool(made._mapping)


async def of_user(driver: Driver, user_id: UUID) -> list[UserTool]:
    """All tools of the user, by name."""
    query = 'SELECT * FROM user_tools WHERE user_id = $1 ORDER BY name COLLATE "C"'
    return [_tool(row) for row in await driver.fetch(query, user_id)]


async def approved(driver: Driver, user_id: UUID) -> list[UserToolDefinition]:
    """The user's approved tools, by name, without their code."""
    query = """
        SELECT name, description, parameters, language, permissions, timeout, idempotent
        FROM user_tools WHERE user_id = $1 AND state = 'approved' ORDER BY name COLLATE "C"
    """
    return [UserToolDefinition(**_fields(row)) for row in await driver.fetch(query, user_id)]


async def code(driver: Driver, user_id: UUID, definition: UserToolDefinition) -> str:
    """The code of an approved tool. Raises `NotFound` if the tool was deleted, or differs from this definition."""
    query = "SELECT * FROM user_tools WHERE user_id = $1 AND name = $2 AND state = 'approved'"
    row = await driver.fetchrow(query, user_id, definition.name)
    if row is None or UserToolDefinition(**_fields(row)) != definition:
        raise NotFound(f"The tool {definition.name} is gone, or was changed.")
    return str(row["code"])


@retried
async def decide(db: Database, user_id: UUID, name: str, *, approve: bool, digest: str | None) -> UserTool:
    """Approve or reject the tool. The decision is final.

    Raises `NotFound`, `Conflict` if the tool has another digest, and `AlreadyDecided` after the opposite decision.
    """
    state: UserToolState = "approved" if approve else "rejected"
    mine = (user_tools.c.user_id == user_id) & (user_tools.c.name == name)
    async with db.transaction() as connection:
        row = (await connection.execute(select(user_tools).where(mine).with_for_update())).first()
        if row is None:
            raise NotFound("There is no such tool of yours.")
        if digest is not None and _tool(row._mapping).digest != digest:
            raise Conflict("This tool has changed since you saw it. Reload it, and decide again.")
        if row.state == state:
            return _tool(row._mapping)
        if row.state != "pending":
            raise AlreadyDecided(f"This tool was {row.state}. To decide otherwise, delete and create it again.")
        decided = update(user_tools).where(mine).values(state=state, decided_at=func.now())
        return _tool((await connection.execute(decided.returning(user_tools))).one()._mapping)


@retried
async def remove(db: Database, user_id: UUID, name: str) -> None:
    """Delete the tool. Raises `NotFound`."""
    mine = (user_tools.c.user_id == user_id) & (user_tools.c.name == name)
    async with db.transaction() as connection:
        gone = await connection.execute(delete(user_tools).where(mine).returning(user_tools.c.name))
        if gone.first() is None:
            raise NotFound("There is no such tool of yours.")


def _tool(row: rows.Record) -> UserTool:
    fields, program = _fields(row), row["code"]
    exactly = msgspec.json.encode([UserToolDefinition(**fields), program], order="deterministic")
    return UserTool(
        **fields,
        code=program,
        digest=hashlib.sha256(exactly).hexdigest(),
        state=row["state"],
        created_at=row["created_at"],
        decided_at=row["decided_at"],
    )


def _fields(row: rows.Record) -> dict[str, Any]:
    plain = ("name", "description", "language", "timeout", "idempotent")
    return {name: row[name] for name in plain} | {
        "parameters": rows.decoded(row["parameters"], dict),
        "permissions": tuple(row["permissions"]),
    }
