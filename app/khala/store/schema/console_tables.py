"""Tables of the operators' console: executors that are alive, and counts of what receipts and blobs have used.

The counts outlive the threads that they count. `khala.store.console.usage_rollup` writes them.
"""

from sqlalchemy import BigInteger, Column, Date, Index, Integer, Numeric, SmallInteger, Table, Text, Uuid, text

from khala.store.schema.autovacuum import OFTEN_UPDATED
from khala.store.schema.columns import metadata, required_time_column, time_column

# Executors that report themselves. Unlogged: after a crash of the database they report again.
executors = Table(
    "executors",
    metadata,
    # As in `runs.lease_owner`.
    Column("id", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("version", Text, nullable=False),
    # Runs that it executes at once; 0 while it shuts down.
    Column("places", Integer, nullable=False),
    Column("active", Integer, nullable=False),
    required_time_column("started_at"),
    time_column("seen_at"),
    Index("executors_seen_at_idx", "seen_at"),
    prefixes=["UNLOGGED"],
)

# One row: how far the counts below go. Whoever holds its lock counts.
usage_rollup = Table(
    "usage_rollup",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    # Receipts before this time are counted.
    time_column("counted_until", nullable=True),
    time_column("blobs_counted_at", nullable=True),
    # The last day of `spend_windows`, and the time before which receipts are counted there.
    Column("windows_day", Date),
    time_column("windows_until", nullable=True),
    # Objects that are stored, and those to which no thread refers.
    Column("objects", BigInteger, nullable=False, server_default="0"),
    Column("bytes", BigInteger, nullable=False, server_default="0"),
    Column("orphans", BigInteger, nullable=False, server_default="0"),
    Column("orphan_bytes", BigInteger, nullable=False, server_default="0"),
)


def _spend_columns() -> list[Column[object]]:
    return [
        Column("calls", BigInteger, nullable=False),
        Column("usd", Numeric(20, 10), nullable=False),
        Column("input_tokens", BigInteger, nullable=False),
        Column("output_tokens", BigInteger, nullable=False),
    ]


# The model calls of a day in UTC.
spend_days = Table(
    "spend_days",
    metadata,
    Column("day", Date, primary_key=True),
    Column("provider", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    *_spend_columns(),
    postgresql_with=OFTEN_UPDATED,
)

# The same by the user who requested the run; the nil UUID for guests.
spend_user_days = Table(
    "spend_user_days",
    metadata,
    Column("user_id", Uuid, primary_key=True),
    Column("day", Date, primary_key=True),
    Column("provider", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    *_spend_columns(),
    Index("spend_user_days_day_idx", "day"),
    postgresql_with=OFTEN_UPDATED,
)

# The spend of each user in the last days, for lists in its order: windows of `days` up to `usage_rollup.windows_day`.
spend_windows = Table(
    "spend_windows",
    metadata,
    Column("days", SmallInteger, primary_key=True),
    Column("user_id", Uuid, primary_key=True),
    *_spend_columns(),
    Index("spend_windows_days_usd_idx", "days", text("usd DESC"), "user_id"),
    postgresql_with=OFTEN_UPDATED,
)

# The tool calls of a day in UTC, by their duration: `khala.domain.durations` has the bounds of the buckets.
tool_days = Table(
    "tool_days",
    metadata,
    Column("day", Date, primary_key=True),
    Column("tool", Text, primary_key=True),
    Column("source", Text, primary_key=True),
    Column("bucket", SmallInteger, primary_key=True),
    Column("calls", BigInteger, nullable=False),
    Column("failures", BigInteger, nullable=False),
    Column("total_ms", BigInteger, nullable=False),
    Column("max_ms", BigInteger, nullable=False),
    Column("slowest_run_id", Uuid),
    postgresql_with=OFTEN_UPDATED,
)

# The blobs of the threads of each owner, as of `usage_rollup.blobs_counted_at`; the nil UUID for guests.
blob_owners = Table(
    "blob_owners",
    metadata,
    Column("owner_id", Uuid, primary_key=True),
    Column("blobs", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Index("blob_owners_bytes_idx", "bytes"),
)
