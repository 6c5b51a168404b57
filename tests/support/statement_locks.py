"""The row locks that a statement takes, read from its text and from the foreign keys of the schema."""

from collections.abc import Iterator
from functools import cache

import msgspec
import sqlglot
from sqlalchemy import Table
from sqlglot import exp

from khala.store.postgres.lock_order import UNCONTENDED
from khala.store.schema.tables import metadata

QUERIES = (exp.Select, exp.Insert, exp.Update, exp.Delete)
WORDS = ("INSERT", "UPDATE", "DELETE", "SHARE", "ADVISORY")
"""Without one of these a statement locks no row."""
ADVISORY = ("PG_ADVISORY_XACT_LOCK", "PG_ADVISORY_XACT_LOCK_SHARED")


class LockedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table whose rows a statement locks, or an advisory lock.

    `keys` are the numbers of the parameters with the keys of the rows, if parameters name all rows. `ordered`: at most
    one row is locked, or the rows are locked in an order. `waits`: the statement may wait for another transaction.
    """

    name: str
    kind: str
    waits: bool = True
    ordered: bool = True
    keys: tuple[int, ...] | None = None


@cache
def touches(statement: str) -> tuple[LockedTable, ...]:
    """The locks that the statement takes, in the order in which it takes them; those of foreign keys come last."""
    if not any(word in statement.upper() for word in WORDS):
        return ()
    found: list[LockedTable] = []
    for tree in sqlglot.parse(statement, dialect="postgres"):
        if tree is not None:
            _read(tree, found)
    # Without the version table of Alembic.
    found = [touch for touch in found if touch.kind == "advisory" or touch.name in metadata.tables]
    for touch in list(found):
        if touch.kind == "insert":
            found += [LockedTable(name=name, kind="reference") for name in _parents(touch.name)]
        if touch.kind == "delete":
            found += [LockedTable(name=name, kind="cascade") for name in _children(touch.name)]
    return tuple(found)


def _read(node: exp.Expr, found: list[LockedTable]) -> None:
    """Collect inner queries before outer ones, and `WITH` before everything else."""
    first = node.args.get("with_")
    if first is not None:
        _read(first, found)
    for inner in node.iter_expressions():
        if inner is not first:
            _read(inner, found)
    if isinstance(node, exp.Anonymous) and node.name.upper() in ADVISORY:
        found.append(_advisory(node))
    if isinstance(node, QUERIES):
        found.extend(_own(node, found))


def _advisory(call: exp.Anonymous) -> LockedTable:
    """A lock by two numbers is that of `blobs.add`. Other locks are named by a text, a parameter at run time."""
    numbers = tuple(_number(one) for one in call.find_all(exp.Parameter))
    return LockedTable(name="keeping" if len(call.expressions) == 2 else "", kind="advisory", keys=numbers)


def _own(node: exp.Expression, found: list[LockedTable]) -> Iterator[LockedTable]:
    match node:
        case exp.Select():
            yield from _locked(node)
        case exp.Insert():
            target = node.this.this if isinstance(node.this, exp.Schema) else node.this
            alone = not isinstance(node.expression, exp.Select) or node.expression.args.get("order") is not None
            single = isinstance(node.expression, exp.Select) and node.expression.args.get("from_") is None
            waits = target.name not in UNCONTENDED
            yield LockedTable(name=target.name, kind="insert", waits=waits, ordered=alone or single)
        case exp.Update() | exp.Delete():
            name, alias = node.this.name, node.this.alias_or_name
            if name not in metadata.tables:
                return
            held = any(touch.name == name and touch.kind == "lock" for touch in found)
            columns = _pinned(node.args.get("where"), alias)
            yield LockedTable(
                name=name,
                kind="update" if isinstance(node, exp.Update) else "delete",
                waits=not held,
                ordered=held or _unique(name, columns),
                keys=columns.get("id"),
            )


def _locked(select: exp.Select) -> Iterator[LockedTable]:
    tables = {table.alias_or_name: table.name for table in _from(select)}
    for lock in select.args.get("locks") or ():
        named = [one.name for one in lock.expressions] or list(tables)
        for alias in named:
            if tables.get(alias) not in metadata.tables:
                continue
            columns = _pinned(select.args.get("where"), alias)
            yield LockedTable(
                name=tables[alias],
                kind="lock",
                waits=lock.args.get("wait") is None,
                ordered=select.args.get("order") is not None or _unique(tables[alias], columns),
                keys=columns.get("id"),
            )


def _from(select: exp.Select) -> Iterator[exp.Table]:
    sources = [select.args.get("from_"), *(select.args.get("joins") or ())]
    for source in sources:
        if source is not None and isinstance(source.this, exp.Table):
            yield source.this


def _pinned(where: exp.Expression | None, alias: str) -> dict[str, tuple[int, ...]]:
    """By column, the parameters that it must equal; `column[]` marks a condition with several values."""
    columns: dict[str, tuple[int, ...]] = {}
    for condition in where.this.flatten() if where is not None and isinstance(where.this, exp.And) else [where]:
        condition = condition.this if isinstance(condition, exp.Where) else condition
        condition = condition.unnest() if condition is not None else None
        if not isinstance(condition, exp.EQ | exp.In) or not isinstance(condition.this, exp.Column):
            continue
        right = condition.expressions if isinstance(condition, exp.In) else [condition.expression]
        parameters = [one for side in right for one in side.find_all(exp.Parameter)]
        if condition.this.table in {"", alias} and parameters and not any(one.find(exp.Select) for one in right):
            columns[condition.this.name] = tuple(map(_number, parameters))
            if isinstance(condition, exp.In) or condition.find(exp.Any):
                columns[f"{condition.this.name}[]"] = ()
    return columns


def _number(parameter: exp.Expression) -> int:
    return int(parameter.this.name) - 1


def _unique(name: str, columns: dict[str, tuple[int, ...]]) -> bool:
    """Whether the columns with single values include a key of the table."""
    table = metadata.tables[name]
    keys = [table.primary_key.columns, *(index.columns for index in table.indexes if index.unique)]
    single = {column for column in columns if f"{column}[]" not in columns}
    return any({column.name for column in key} <= single for key in keys)


def _parents(name: str) -> list[str]:
    return sorted({key.column.table.name for key in metadata.tables[name].foreign_keys})


def _children(name: str) -> list[str]:
    return sorted({table.name for table in metadata.sorted_tables if _cascades(table, name)})


def _cascades(table: Table, name: str) -> bool:
    return any(key.column.table.name == name and key.ondelete == "CASCADE" for key in table.foreign_keys)
