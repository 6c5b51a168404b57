"""Watches the order of locks in every transaction of Khala that runs in this process, and reports each violation.

The statements are read as asyncpg sends them, so code under test that catches an error cannot hide a violation. Only
connections with the application name of Khala count, so a test may lock anything on its own connections.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from khala.store.postgres.lock_order import GUARDS, LOCK_ORDER
from khala.store.postgres.session_settings import SESSION_SETTINGS
from tests.support.statement_locks import LockedTable, touches

RANKS = {name: rank for rank, name in enumerate(LOCK_ORDER)}
KEYED = ("threads", "runs", "users")
"""Tables whose locked rows are known by key."""
SINGLE_INSERTS = {"threads", "messages"}
"""Tables into which a transaction inserts at most one contended row."""
UNNAMED = "one at a time"
"""Advisory locks of whole jobs, such as migrations, by a number. No transaction waits for them with another lock."""
DEFINITIONS = ("ALTER", "CREATE", "DROP")
"""A transaction with such a statement belongs to a migration, and locks whole tables."""
FILE_VARIABLE = "KHALA_TEST_LOCK_ORDER"
"""Environment variable with the file to which a process under test writes its violations."""
MAX_SHOWN = 160
"""Characters of a statement in a violation."""

ROOT = Path(__file__).resolve().parents[2]
IGNORED_FRAMES = (Path(__file__).resolve(), ROOT / "app" / "khala" / "store" / "postgres" / "database.py")

violations: list[str] = []
"""The violations in this process since `take_violations`."""


class Held(msgspec.Struct):
    """Locks of one table: the known keys of its rows, and all ids in the statements.

    `own`: statements on this table took the locks, not only foreign keys.
    """

    keys: set[UUID] = msgspec.field(default_factory=set)
    named: set[UUID] = msgspec.field(default_factory=set)
    own: bool = False


class Transaction:
    """The locks that one transaction has taken so far."""

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}
        self.unguarded: set[str] = set()
        self.trail: list[str] = []
        self.migrates = False
        self.fresh = False

    def run(self, statement: str, args: Sequence[Any]) -> Iterator[str]:
        """The violations of a statement that is about to run."""
        self.migrates = self.migrates or statement.lstrip().upper().startswith(DEFINITIONS)
        if self.migrates:
            return
        before = set(self.held)
        for touch in touches(statement):
            touch = _named(touch, args)
            if touch.name == UNNAMED:
                continue
            keys = _keys(touch, args)
            ids = set(_ids(args, only_lists=True)) or set(_ids(args))
            if [] in args and not ids:
                continue  # an empty list locks no row
            problem = self._problem(touch, keys, ids) if touch.waits else None
            if problem is not None:
                yield f"{problem}: {_short(statement)} [after {' → '.join(self.trail) or 'nothing'}]"
            self._take(touch, keys, args)
        self.fresh = bool(self.held.keys() - before)

    def ran(self, statement: str, found: Sequence[Mapping[str, Any]]) -> None:
        """Record the rows that a statement returned."""
        every = touches(statement)
        if not found and len(every) == 1 and every[0].kind == "lock" and every[0].keys and self.fresh:
            del self.held[every[0].name]  # no row was found, so none is locked
        for touch in every:
            held = self.held.get(touch.name)
            if held is not None and touch.name in KEYED and touch.kind != "reference":
                ids = {key for row in found for key in _ids(tuple(row.values()))}
                held.named |= ids
                if touch.keys is None:
                    held.keys |= {key for row in found for key in _ids([dict(row).get("id")])}

    def _problem(self, touch: LockedTable, keys: set[UUID] | None, ids: set[UUID]) -> str | None:
        if touch.name in GUARDS and not (touch.name in RANKS and touch.kind == "insert"):
            return self._unguarded(touch)
        if touch.kind in {"reference", "cascade"} and touch.name in self.held:
            return None
        if touch.name not in RANKS:
            return f"{touch.name} has no place in LOCK_ORDER"
        if touch.name in self.held and self.held[touch.name].own:
            return self._again(touch, keys, ids)
        later = [name for name in self.held if RANKS.get(name, -1) > RANKS[touch.name]]
        if later:
            return f"locks {touch.name} after {', '.join(later)}"
        if self.unguarded:
            return f"locks {touch.name} after rows of {', '.join(self.unguarded)} without their guard"
        several = not touch.ordered and (keys is None or len(keys) > 1)
        if several and not (touch.kind == "insert" and touch.name in SINGLE_INSERTS):
            return f"locks several rows of {touch.name} in no order"
        return None

    def _unguarded(self, touch: LockedTable) -> str | None:
        """Rows below a guard: a transaction without the guard may lock no other rows."""
        if any(guard in self.held for guard in GUARDS[touch.name]):
            return None
        others = (self.unguarded | self.held.keys()) - {touch.name}
        return f"locks {touch.name} without {' or '.join(GUARDS[touch.name])}, after {others}" if others else None

    def _again(self, touch: LockedTable, keys: set[UUID] | None, ids: set[UUID]) -> str | None:
        """Further locks of a table: the same rows, or later ones while it is the last table in the order."""
        held = self.held[touch.name]
        if touch.kind in {"reference", "cascade", "advisory"} or touch.name not in KEYED:
            return None
        if keys is None:
            return None if ids and ids <= held.named else f"locks unknown further rows of {touch.name}"
        new = keys - held.named - held.keys
        later = [name for name in self.held if RANKS.get(name, -1) > RANKS[touch.name]]
        if new and later:
            return f"locks other rows of {touch.name} after {', '.join(later)}"
        if new and held.keys and min(new) < max(held.keys):
            return f"locks {touch.name} {min(new)} after {max(held.keys)}, which has a higher key"
        return None

    def _take(self, touch: LockedTable, keys: set[UUID] | None, args: Sequence[Any]) -> None:
        if not self.trail or self.trail[-1] != touch.name:
            self.trail.append(touch.name)
        if touch.name in GUARDS and touch.kind != "insert":
            if touch.waits and not any(guard in self.held for guard in GUARDS[touch.name]):
                self.unguarded.add(touch.name)
            return
        if touch.kind == "insert" and not touch.waits:
            return  # no other transaction knows the new key
        held = self.held.setdefault(touch.name, Held())
        if touch.kind not in {"reference", "cascade"}:
            held.keys |= keys or set()
            held.named |= set(_ids(args))
            held.own = True


def _named(touch: LockedTable, args: Sequence[Any]) -> LockedTable:
    """The lock, with the name of an advisory lock from the parameters."""
    if touch.kind != "advisory" or touch.name:
        return touch
    names = [args[number].split(" ")[0] for number in touch.keys or () if isinstance(args[number], str)]
    return msgspec.structs.replace(touch, name=names[0] if names else UNNAMED)


def _keys(touch: LockedTable, args: Sequence[Any]) -> set[UUID] | None:
    """The keys of the rows, if parameters name all of them."""
    if touch.keys is None or touch.kind == "advisory":
        return None
    return set(_ids([args[number] for number in touch.keys if number < len(args)]))


def _ids(values: Sequence[Any], *, only_lists: bool = False) -> Iterator[UUID]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _ids(value)
        elif isinstance(value, UUID) and not only_lists:
            yield value


def _short(statement: str) -> str:
    return re.sub(r"\s+", " ", statement).strip()[:MAX_SHOWN]


class WatchedProtocol:
    """Wraps asyncpg's protocol of one connection, and reads its statements."""

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self._transaction: Transaction | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._protocol, name)

    async def query(self, query: str, timeout: float | None) -> Any:
        """Run statements without parameters, such as BEGIN and COMMIT."""
        word = query.lstrip()[:8].upper()
        if word.startswith(("COMMIT", "ROLLBACK")) and " TO " not in query.upper():
            self._transaction = None
        else:
            self._begin(query, ())
        done = await self._protocol.query(query, timeout)
        if word.startswith(("BEGIN", "START")):
            self._transaction = Transaction()
        return done

    async def bind_execute(self, state: Any, args: Sequence[Any], *given: Any, **options: Any) -> Any:
        """Run a statement with parameters."""
        transaction = self._begin(state.query, args)
        found = await self._protocol.bind_execute(state, args, *given, **options)
        rows = found[0] if isinstance(found, tuple) else found
        transaction.ran(state.query, rows or ())
        return found

    async def bind_execute_many(self, state: Any, args: Any, *given: Any, **options: Any) -> Any:
        """Run a statement with many sets of parameters."""
        every = list(args)
        for one in every:
            self._begin(state.query, one)
        return await self._protocol.bind_execute_many(state, every, *given, **options)

    def _begin(self, statement: str, args: Sequence[Any]) -> Transaction:
        transaction = self._transaction or Transaction()
        for problem in transaction.run(statement, args):
            if _by_khala():
                _report(problem)
        return transaction


def _by_khala() -> bool:
    """Whether code of Khala runs the current statement, and not a test itself."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and path not in IGNORED_FRAMES and not path.is_relative_to(ROOT / ".venv"):
            return not path.is_relative_to(ROOT / "tests")
        frame = frame.f_back
    return True


def _report(problem: str) -> None:
    if FILE_VARIABLE in os.environ:
        with Path(os.environ[FILE_VARIABLE]).open("a") as file:
            file.write(problem + "\n")
    else:
        violations.append(problem)


def install() -> None:
    """Watch all connections that Khala makes from now on in this process."""
    if getattr(asyncpg.Connection, "watched", False):
        return
    make = asyncpg.Connection.__init__

    def made(self: Any, protocol: Any, *arguments: Any, **options: Any) -> None:
        make(self, protocol, *arguments, **options)
        settings = self._params.server_settings or {}
        if settings.get("application_name") == SESSION_SETTINGS["application_name"]:
            self._protocol = WatchedProtocol(protocol)

    asyncpg.Connection.__init__ = made
    asyncpg.Connection.watched = True


def violations_file() -> Path:
    """The file to which processes that this one starts write their violations."""
    return Path(tempfile.gettempdir()) / f"khala-lock-order-{os.getpid()}"


def take_violations() -> list[str]:
    """The distinct violations since the last call, of this process and of `khala` processes that it started."""
    found = list(violations)
    violations.clear()
    if violations_file().exists():
        found += violations_file().read_text().splitlines()
        violations_file().unlink()
    return list(dict.fromkeys(found))
