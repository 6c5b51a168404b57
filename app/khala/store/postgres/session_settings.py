"""What every connection to Postgres sets, also where a transaction pooler stands between."""

from typing import Any

import asyncpg

SESSION_SETTINGS = {
    "application_name": "khala",
    "timezone": "UTC",
    "jit": "off",
    # The fence of `khala.store.runs.parts` rests on each statement seeing what was committed before it.
    "default_transaction_isolation": "read committed",
    # A process that freezes or drops off the network in a transaction holds row locks that others wait for. Less than
    # a lease, so that its runs can be taken over.
    "idle_in_transaction_session_timeout": "5s",
}
"""What every connection sets."""
POOLER_SETTINGS = ("application_name", "timezone")
"""What a pooler carries from one server connection to the next for a client; it refuses the rest."""
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED;"
"""How a transaction begins that asks for no level."""
SET_LOCAL = "".join(
    f"SET LOCAL {name} = '{SESSION_SETTINGS[name]}';" for name in ("jit", "idle_in_transaction_session_timeout")
)
"""The rest, for one transaction."""


class PooledConnection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg tells no types
    """A connection to a transaction pooler: what a session would set goes along with each `BEGIN`, in one message."""

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        """As asyncpg's own, by which it begins transactions, too."""
        if not args and query.startswith("BEGIN"):
            query = (BEGIN if query == "BEGIN;" else query) + SET_LOCAL
        done: str = await super().execute(query, *args, timeout=timeout)
        return done


def connect_options(*, pooled: bool) -> dict[str, Any]:
    """What asyncpg is to connect with."""
    if not pooled:
        return {"server_settings": SESSION_SETTINGS}
    # What was prepared on one server connection is not there on the next: each statement is parsed anew, without a
    # name, and asyncpg lets no other come between that and its execution.
    return {
        "server_settings": {name: SESSION_SETTINGS[name] for name in POOLER_SETTINGS},
        "statement_cache_size": 0,
        "connection_class": PooledConnection,
    }


def dialect_options(*, pooled: bool) -> dict[str, Any]:
    """The same for SQLAlchemy's dialect, which prepares by itself."""
    return {"prepared_statement_cache_size": 0, "prepared_statement_name_func": str} if pooled else {}
