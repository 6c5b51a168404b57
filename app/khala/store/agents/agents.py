"""Agents of users: a row for each version. A version never changes, so a run keeps the one with which it was sent."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from khala.domain import ids
from khala.domain.agents import MAX_AGENTS, MAX_KEPT_VERSIONS, Agent, AgentDefinition
from khala.domain.chat import RunBudget
from khala.domain.errors import Conflict, NotFound
from khala.domain.parts import json_text
from khala.domain.routing import RoutableAgent, texts_of
from khala.store.postgres import rows
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.postgres.rows import Record
from khala.store.threads import thread_lists

COLUMNS = """
    agents.*, EXISTS (SELECT FROM agent_links AS links
                      WHERE links.user_id = agents.user_id AND links.name = agents.name) AS is_shared
"""
NEWEST = f"SELECT {COLUMNS} FROM agents WHERE user_id = $1 AND name = $2 ORDER BY version DESC LIMIT 1"
"""The newest version. If that has `deleted_at`, the agent was deleted."""
ALL_NEWEST = f"SELECT DISTINCT ON (name) {COLUMNS} FROM agents WHERE user_id = $1 ORDER BY name, version DESC"
ROUTABLE = """
    SELECT DISTINCT ON (name) id, name, title, description, examples, model, fallbacks, deleted_at FROM agents
    WHERE user_id = $1 ORDER BY name, version DESC
"""
INSERT = f"""
    INSERT INTO agents (id, user_id, name, version, title, description, instructions, tools, model, fallbacks, examples,
                        budget, executor)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::text::jsonb, $13) RETURNING {COLUMNS}
"""
PRUNE = """
    DELETE FROM agents WHERE user_id = $1 AND id IN (
        SELECT id FROM (
            SELECT id, row_number() OVER (ORDER BY id DESC) AS place,
                   version = max(version) OVER (PARTITION BY name) AND deleted_at IS NULL AS current
            FROM agents WHERE user_id = $1
        ) AS ranked WHERE place > $2 AND NOT current
    ) AND NOT EXISTS (
        SELECT FROM runs WHERE status IN ('queued', 'running', 'blocked') AND options->>'agentId' = agents.id::text
    )
"""
"""Deletes old versions that no active run uses."""
LEAVE_FOLDERS = "UPDATE thread_folders SET agent = NULL WHERE subject_id = $1 AND agent = $2"
DELETE_LINK = "DELETE FROM agent_links WHERE user_id = $1 AND name = $2"


class StoredAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent of a user. `id` identifies its version."""

    id: UUID
    agent: Agent


@retried
async def create(db: Database, user_id: UUID, name: str, definition: AgentDefinition) -> Agent:
    """Create an agent. Raises `Conflict` if the name is taken or there are too many.

    The versions of a deleted agent of this name are counted on.
    """
    async with db.driver() as driver, driver.transaction():
        await thread_lists.lock_user(driver, user_id)
        newest = await _all_newest(driver, user_id)
        before = next((row for row in newest if row["name"] == name), None)
        if before is not None and before["deleted_at"] is None:
            raise Conflict(f"There is an agent {name} already.")
        if sum(row["deleted_at"] is None for row in newest) >= MAX_AGENTS:
            raise Conflict(f"An account has at most {MAX_AGENTS} agents. Delete one first.")
        return await _insert(driver, user_id, name, 1 if before is None else before["version"] + 1, definition)


@retried
async def change(db: Database, user_id: UUID, name: str, changes: Mapping[str, Any]) -> Agent:
    """Add a version with these fields changed. Without a difference, nothing changes. Raises `NotFound`."""
    async with db.driver() as driver, driver.transaction():
        await thread_lists.lock_user(driver, user_id)
        before = await current(driver, user_id, name)
        changed = msgspec.structs.replace(before.agent, **changes)
        if changed == before.agent:
            return before.agent
        return await _insert(driver, user_id, name, before.agent.version + 1, changed)


@retried
async def remove(db: Database, user_id: UUID, name: str) -> None:
    """Delete the agent and its link, and take it from folders. Its versions stay for runs that use them.

    Raises `NotFound`.
    """
    async with db.driver() as driver, driver.transaction():
        await thread_lists.lock_user(driver, user_id)
        removed = await current(driver, user_id, name)
        await driver.execute("UPDATE agents SET deleted_at = now() WHERE id = $1", removed.id)
        await driver.execute(DELETE_LINK, user_id, name)
        await driver.execute(LEAVE_FOLDERS, user_id, name)


async def of_user(driver: Driver, user_id: UUID) -> list[Agent]:
    """The current versions of the user's agents, by name."""
    return [_stored(row).agent for row in await _all_newest(driver, user_id) if row["deleted_at"] is None]


async def routable(driver: Driver, user_id: UUID) -> list[RoutableAgent]:
    """The current versions of the user's agents, as a router needs them."""
    return [
        RoutableAgent(
            id=row["id"],
            name=row["name"],
            texts=texts_of(row["title"], row["description"], row["examples"]),
            models=[name for name in (row["model"], *row["fallbacks"]) if name is not None],
        )
        for row in await driver.fetch(ROUTABLE, user_id)
        if row["deleted_at"] is None
    ]


async def find(driver: Driver, user_id: UUID, name: str) -> StoredAgent | None:
    """The current version of the user's agent of this name."""
    row = await driver.fetchrow(NEWEST, user_id, name)
    return None if row is None or row["deleted_at"] is not None else _stored(row)


async def version(driver: Driver, agent_id: UUID) -> Agent | None:
    """The version with this id, whether or not it is the current one."""
    row = await driver.fetchrow(f"SELECT {COLUMNS} FROM agents WHERE id = $1", agent_id)
    return None if row is None else _stored(row).agent


async def current(driver: Driver, user_id: UUID, name: str) -> StoredAgent:
    """The current version of the user's agent of this name. Raises `NotFound`."""
    found = await find(driver, user_id, name)
    if found is None:
        raise NotFound("There is no such agent of yours.")
    return found


async def _all_newest(driver: Driver, user_id: UUID) -> list[Record]:
    newest: list[Record] = await driver.fetch(ALL_NEWEST, user_id)
    return sorted(newest, key=lambda row: str(row["name"]))


async def _insert(driver: Driver, user_id: UUID, name: str, number: int, new: AgentDefinition) -> Agent:
    values = (
        *(new.title, new.description, new.instructions, new.tools, new.model, new.fallbacks, new.examples),
        None if new.budget is None else json_text(new.budget),
        new.executor,
    )
    made = await driver.fetchrow(INSERT, ids.new(), user_id, name, number, *values)
    await driver.execute(PRUNE, user_id, MAX_KEPT_VERSIONS)
    return _stored(made).agent


def _stored(row: Record) -> StoredAgent:
    agent = Agent(
        name=row["name"],
        version=row["version"],
        owner=row["user_id"],
        visibility="link" if row["is_shared"] else "private",
        title=row["title"],
        description=row["description"],
        instructions=row["instructions"],
        tools=list(row["tools"]),
        model=row["model"],
        fallbacks=list(row["fallbacks"]),
        examples=list(row["examples"]),
        budget=None if row["budget"] is None else rows.decoded(row["budget"], RunBudget),
        executor="remote" if row["executor"] == "remote" else "server",
    )
    return StoredAgent(id=row["id"], agent=agent)
