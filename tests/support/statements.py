"""Records the statements of a workload, and finds those that access rows of any thread in the tables of threads."""

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from khala.store.postgres.database import Driver
from khala.store.schema.tables import metadata

NOT_OWNED = ("audit", "listings", "search_walk")
"""Tables with a thread id that do not belong to the thread: the audit trail, users' lists, the walk of the search."""
OWNED = (
    {"threads": "id"}
    | {
        table.name: "thread_id"
        for table in metadata.sorted_tables
        if "thread_id" in table.columns and table.name not in NOT_OWNED
    }
    | dict.fromkeys(("passage_queue", "passage_vectors"), "thread_id")
)
"""By table, the column with the thread of a row. The tables of vectors are not part of the migrations."""


@contextlib.contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Record the statements of all connections opened meanwhile, by SQLAlchemy and by the driver itself."""
    seen: set[str] = set()
    make = asyncpg.Connection.__init__

    def made(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        self.add_query_logger(lambda logged: seen.add(on_one_line(logged.query)))

    def executed(_: Any, __: Any, statement: str, *___: Any) -> None:
        seen.add(on_one_line(statement))

    monkeypatch.setattr(asyncpg.Connection, "__init__", made)
    event.listen(Engine, "before_cursor_execute", executed)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", executed)
        monkeypatch.undo()


@contextlib.contextmanager
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Log the statements of the driver on all connections opened meanwhile, with BEGIN and COMMIT, in order."""
    statements: list[str] = []
    make = asyncpg.Connection.__init__

    def made(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        self.add_query_logger(lambda record: statements.append(on_one_line(record.query)))

    monkeypatch.setattr(asyncpg.Connection, "__init__", made)
    try:
        yield statements
    finally:
        monkeypatch.undo()


def on_one_line(statement: str) -> str:
    """The statement on one line."""
    return " ".join(statement.split())


def has_plan(statement: str) -> bool:
    """Whether the statement has a plan."""
    return statement.lower().startswith(("select", "insert", "update", "delete", "with"))


async def plan(driver: Driver, statement: str) -> dict[str, Any]:
    """The generic plan of the statement."""
    count = len((await driver.prepare(statement)).get_parameters())
    arguments = f"({', '.join(['NULL'] * count)})" if count else ""
    await driver.execute("SET plan_cache_mode = force_generic_plan")
    await driver.execute(f"PREPARE explained AS {statement}")
    try:
        found = await driver.fetchval(f"EXPLAIN (VERBOSE, FORMAT JSON) EXECUTE explained{arguments}")
    finally:
        await driver.execute("DEALLOCATE explained")
    whole: dict[str, Any] = json.loads(found)[0]["Plan"]
    return whole


def nodes(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All nodes of a plan."""
    yield whole
    for below in whole.get("Plans", ()):
        yield from nodes(below)


async def unrestricted_tables(driver: Driver, statement: str) -> list[str]:
    """The tables of threads that the statement reads or changes without a condition on the thread id.

    INSERTs do not count, because a new row has a thread id anyway.
    """
    found = list(nodes(await plan(driver, statement)))
    conditions = " ".join(
        str(value) for node in found for name, value in node.items() if name.endswith(CONDITION_SUFFIXES)
    )
    touched = {(node["Alias"], node["Relation Name"]) for node in found if _reads(node)}
    return sorted({table for alias, table in touched if not _is_restricted(f"{alias}.{OWNED[table]}", conditions)})


CONDITION_SUFFIXES = ("Cond", "Filter")
"""Suffixes of the names of conditions in a plan."""


def _reads(node: dict[str, Any]) -> bool:
    return node.get("Relation Name") in OWNED and node.get("Operation") != "Insert"


def _is_restricted(column: str, conditions: str) -> bool:
    name = re.escape(column)
    return bool(re.search(rf"(?<![\w.]){name} = |= {name}(?!\w)|NOT \({name} IS DISTINCT FROM", conditions))
