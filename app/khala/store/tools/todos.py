"""Todos of users and of the agents that work for them. Each has a number, which is unique for its owner."""

from uuid import UUID

from khala.domain.chat import WireStruct
from khala.domain.errors import NotFound, PayloadTooLarge
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.tools import workspace_owners

MAX_OPEN_TODOS = 500
"""Open todos of one owner. The same number of the latest completed todos is kept."""
MAX_TODO_CHARACTERS = 2000
"""Characters of one todo."""

ADD = """
    INSERT INTO todos (owner_id, id, text, key)
    SELECT $1, coalesce(max(id), 0) + 1, $2, $3 FROM todos WHERE owner_id = $1 RETURNING id
"""
DELETE_OLD_DONE = """
    DELETE FROM todos WHERE owner_id = $1 AND completed_at IS NOT NULL AND id <= (
        SELECT id FROM todos WHERE owner_id = $1 AND completed_at IS NOT NULL ORDER BY id DESC OFFSET $2 LIMIT 1)
"""
MOVE = """
    WITH last AS (SELECT coalesce(max(id), 0) AS id FROM todos WHERE owner_id = $2)
    UPDATE todos SET owner_id = $2, id = last.id + numbered.place
    FROM last, (SELECT id, row_number() OVER (ORDER BY id) AS place FROM todos WHERE owner_id = $1) AS numbered
    WHERE todos.owner_id = $1 AND todos.id = numbered.id
"""


class Todo(WireStruct, frozen=True, kw_only=True):
    """A todo, open or done."""

    id: int
    text: str
    done: bool = False


@retried
async def add(db: Database, owner_id: UUID, text: str, *, key: str) -> int:
    """Add a todo and return its number. The same key adds no second todo. Raises `PayloadTooLarge` at the limit."""
    async with workspace_owners.changing(db, owner_id) as driver:
        known: int | None = await driver.fetchval(
            "SELECT id FROM todos WHERE owner_id = $1 AND key = $2", owner_id, key
        )
        if known is not None:
            return known
        still = "SELECT count(*) FROM todos WHERE owner_id = $1 AND completed_at IS NULL"
        if await driver.fetchval(still, owner_id) >= MAX_OPEN_TODOS:
            raise PayloadTooLarge(f"There are at most {MAX_OPEN_TODOS} open todos. Complete some first.")
        await driver.execute(DELETE_OLD_DONE, owner_id, MAX_OPEN_TODOS)
        return int(await driver.fetchval(ADD, owner_id, text, key))


async def of_owner(driver: Driver, owner_id: UUID) -> list[Todo]:
    """The owner's todos, by number."""
    query = "SELECT id, text, completed_at IS NOT NULL AS done FROM todos WHERE owner_id = $1 ORDER BY id"
    return [Todo(**dict(row)) for row in await driver.fetch(query, owner_id)]


@retried
async def complete(db: Database, owner_id: UUID, number: int) -> Todo:
    """Complete the todo. Repeating the call changes nothing. Raises `NotFound`."""
    query = """
        UPDATE todos SET completed_at = coalesce(completed_at, now()) WHERE owner_id = $1 AND id = $2 RETURNING text
    """
    async with workspace_owners.changing(db, owner_id) as driver:
        text: str | None = await driver.fetchval(query, owner_id, number)
    if text is None:
        raise NotFound(f"There is no todo {number}.")
    return Todo(id=number, text=text, done=True)


async def move_all(driver: Driver, before: UUID, after: UUID) -> None:
    """Move all todos to another owner, with new numbers. The caller holds both owners' locks."""
    await driver.execute(MOVE, before, after)
