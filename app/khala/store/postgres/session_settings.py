"""Settings of every connection to Postgres, also of those that go through a transaction pooler."""

from typing import Any

import asyncpg

SESSION_SETTINGS = {
    "application_name": "khala",
    "timezone": "UTC",
    "jit": "off",
    # The fence of `khala.store.runs.parts` requires that each statement sees what was committed before it.
    "default_transaction_isolation": "read committed",
    # A process that freezes or loses the network in a transaction holds row locks that others wait for. Shorter than a
    # lease, so that its runs can be taken over.
    "idle_in_transaction_session_timeout": "5s",
}
"""The settings of a session."""
POOLER_SETTINGS = ("application_name", "timezone")
"""The settings that a pooler restores for a client on each server connection; it refuses the others."""
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED;"
"""The statement that begins a transaction without an explicit isolation level."""
SET_LOCAL = "".join(
    f"SET LOCAL {name} = '{SESSION_SETTINGS[name]}';" for name in ("jit", "idle_in_transaction_session_timeout")
)
"""The other settings, for one transaction."""


class PooledConnection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg tells no types
    """A connection to a transaction pooler: the settings of a session are sent with each `BEGIN`, in one message."""

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        """As asyncpg's method, by which it also begins transactions."""
        if not args and query.startswith("BEGIN"):
            query = (BEGIN if query == "BEGIN;" else query) + SET_LOCAL
        done: str = await super().execute(query, *args, timeout=timeout)
        return done


def is_pooled(driver: "asyncpg.Connection[asyncpg.Record]") -> bool:
    """Whether this connection goes through a transaction pooler.

    `isinstance` cannot tell: asyncpg answers yes for every connection and every subclass of its `Connection`.
    """
    return type(driver) is PooledConnection


def connect_options(*, pooled: bool) -> dict[str, Any]:
    """The options with which asyncpg connects."""
    if not pooled:
        return {"server_settings": SESSION_SETTINGS}
    # A statement that was prepared on one server connection does not exist on the next: each statement is parsed anew,
    # without a name, and asyncpg sends no other statement between that and the execution.
    return {
        "server_settings": {name: SESSION_SETTINGS[name] for name in POOLER_SETTINGS},
        "statement_cache_size": 0,
        "connection_class": PooledConnection,
    }


def dialect_options(*, pooled: bool) -> dict[str, Any]:
    """The same for SQLAlchemy's dialect, which prepares statements itself."""
    return {"prepared_statement_cache_size": 0, "prepared_statement_name_func": str} if pooled else {}
