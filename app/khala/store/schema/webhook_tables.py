"""Tables of webhooks: the endpoints, and the outbox of events that they get."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from khala.store.schema.autovacuum import OFTEN_UPDATED
from khala.store.schema.columns import metadata, required_time_column, time_column

webhook_endpoints = Table(
    "webhook_endpoints",
    metadata,
    Column("id", Uuid, primary_key=True),
    # The account whose threads' events the endpoint gets; the nil UUID for the operator's, which get all events.
    Column("scope_id", Uuid, nullable=False),
    Column("url", Text, nullable=False),
    Column("description", Text, nullable=False, server_default=""),
    # Types of events; none for all.
    Column("events", ARRAY(Text), nullable=False, server_default="{}"),
    Column("include_content", Boolean, nullable=False, server_default="false"),
    Column("secret", LargeBinary, nullable=False),
    # The secret before the last rotation, which signs until this time, too.
    Column("previous_secret", LargeBinary),
    time_column("previous_expires_at", nullable=True),
    Column("is_enabled", Boolean, nullable=False, server_default="true"),
    Column("disabled_reason", Text),
    Column("failures", Integer, nullable=False, server_default="0"),
    time_column("failing_since", nullable=True),
    time_column("paused_until", nullable=True),
    time_column("created_at"),
    # A deleted endpoint is disabled, and has no address and no secret. The purge deletes its row after its deliveries.
    time_column("deleted_at", nullable=True),
    Index("webhook_endpoints_scope_id_idx", "scope_id", postgresql_where=text("deleted_at IS NULL")),
    Index("webhook_endpoints_deleted_at_idx", "deleted_at", postgresql_where=text("deleted_at IS NOT NULL")),
    postgresql_with=OFTEN_UPDATED,
)

# One row for each event and endpoint. No foreign keys: their locks would have transactions wait for deliveries.
webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("endpoint_id", Uuid, primary_key=True),
    # From the sequence `webhook_deliveries_seq`, while the thread's lock is held: in a thread, the order of commits.
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("id", Uuid, nullable=False),
    Column("thread_id", Uuid, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("type", Text, nullable=False),
    Column("data", JSONB, nullable=False),
    Column("state", Text, nullable=False, server_default="pending"),
    # The next attempt, or the end of the lease of one. Null while an earlier event of the thread is pending, and for
    # events that are not pending.
    time_column("due_at", nullable=True),
    # The attempt that holds the lease.
    Column("claim_id", Uuid),
    Column("attempts", Integer, nullable=False, server_default="0"),
    time_column("first_attempt_at", nullable=True),
    time_column("attempted_at", nullable=True),
    # The outcome of the last attempt.
    Column("response_status", Integer),
    Column("response", Text),
    Column("error", Text),
    Column("duration_ms", Integer),
    required_time_column("created_at"),
    CheckConstraint("state IN ('pending', 'delivered', 'failed')", name="state"),
    Index(
        "webhook_deliveries_pending_idx", "endpoint_id", "thread_id", "seq", postgresql_where=text("state = 'pending'")
    ),
    Index("webhook_deliveries_due_idx", "endpoint_id", "due_at", "seq", postgresql_where=text("due_at IS NOT NULL")),
    Index("webhook_deliveries_claimed_idx", "endpoint_id", postgresql_where=text("claim_id IS NOT NULL")),
    Index("webhook_deliveries_created_at_idx", "created_at"),
    postgresql_with=OFTEN_UPDATED,
)
