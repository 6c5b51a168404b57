"""The statements that a workload runs, and in which of the threads' tables each reads or changes rows of any thread."""

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

ELSEWHERE = ("audit", "listings")
"""Tables that bear a thread's id and are none of the thread's: the trail, and users' lists."""
OWNED = {"threads": "id"} | {
    table.name: "thread_id"
    for table in metadata.sorted_tables
    if "thread_id" in table.columns and table.name not in ELSEWHERE
}
"""By table, the column that says whose thread a row is."""


@contextlib.contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The statements of all connections that are made while this is open, by SQLAlchemy and by the driver itself."""
    seen: set[str] = set()
    make = asyncpg.Connection.__init__

    def made(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        self.add_query_logger(lambda logged: seen.add(squeezed(logged.query)))

    def executed(_: Any, __: Any, statement: str, *___: Any) -> None:
        seen.add(squeezed(statement))

    monkeypatch.setattr(asyncpg.Connection, "__init__", made)
    event.listen(Engine, "before_cursor_execute", executed)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", executed)
        monkeypatch.undo()


def squeezed(statement: str) -> str:
    """The statement on one line."""
    return " ".join(statement.split())


def planned(statement: str) -> bool:
    """Whether it is one that has a plan."""
    return statement.lower().startswith(("select", "insert", "update", "delete", "with"))


async def plan(driver: Driver, statement: str) -> dict[str, Any]:
    """The statement's plan, whatever its arguments are."""
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


async def unbound(driver: Driver, statement: str) -> list[str]:
    """The thread's tables that it looks into, or changes, without asking for one thread's rows or some threads'.

    What is inserted bears its thread's id anyhow.
    """
    found = list(nodes(await plan(driver, statement)))
    conditions = " ".join(str(value) for node in found for name, value in node.items() if name.endswith(ASKED))
    touched = {(node["Alias"], node["Relation Name"]) for node in found if _reads(node)}
    return sorted({table for alias, table in touched if not _asked(f"{alias}.{OWNED[table]}", conditions)})


ASKED = ("Cond", "Filter")
"""What a plan's conditions are called."""


def _reads(node: dict[str, Any]) -> bool:
    return node.get("Relation Name") in OWNED and node.get("Operation") != "Insert"


def _asked(column: str, conditions: str) -> bool:
    name = re.escape(column)
    return bool(re.search(rf"(?<![\w.]){name} = |= {name}(?!\w)|NOT \({name} IS DISTINCT FROM", conditions))
