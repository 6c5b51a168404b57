"""Tables of plans: their steps, and the events that both follow from."""

from sqlalchemy import BigInteger, CheckConstraint, Column, ForeignKey, Index, Integer, Table, Text, Uuid, text
from sqlalchemy.dialects.postgresql import JSONB

from khala.store.schema.autovacuum import INSERT_ONLY, OFTEN_UPDATED
from khala.store.schema.columns import metadata, thread_id_column, time_column

plans = Table(
    "plans",
    metadata,
    Column("id", Uuid, primary_key=True),
    thread_id_column(),
    # The person for whom the steps are executed: a user, or the author id of the key that they presented.
    Column("user_id", Uuid),
    Column("requester_key_id", Uuid),
    # The network of a person without an account, whose budget the steps use. Only while the plan goes on.
    Column("network", Text),
    Column("status", Text, nullable=False),
    # All of the plan but its steps, as after the event `event_seq`.
    Column("state", JSONB, nullable=False),
    Column("event_seq", Integer, nullable=False),
    # The thread's revision of the last change, and of the last change of what the steps are.
    Column("revision", BigInteger, nullable=False),
    Column("edited_revision", BigInteger, nullable=False),
    Column("epoch", Integer, nullable=False, server_default="0"),
    Column("lease_owner", Text),
    time_column("lease_expires_at", nullable=True),
    time_column("created_at"),
    time_column("updated_at"),
    # The author id of the person who created the plan; null in plans of a version before 0042.
    Column("creator_id", Uuid),
    # The author id of the person whose edit has paused the plan of another one, until it is resumed.
    Column("edited_by", Uuid),
    CheckConstraint("status IN ('idle', 'running', 'pausing', 'paused', 'stopping', 'stopped')", name="status"),
    Index("plans_thread_id_revision_idx", "thread_id", "revision"),
    # The plans that a driver has to hold.
    Index("plans_driven_idx", "id", postgresql_where=text("status IN ('running', 'pausing', 'stopping')")),
    # The plans that have paused by themselves, for monitoring.
    Index(
        "plans_waiting_idx",
        "id",
        postgresql_where=text("status = 'paused' AND (state ->> 'pause_reason') <> 'requested'"),
    ),
    postgresql_with=OFTEN_UPDATED,
)

plan_steps = Table(
    "plan_steps",
    metadata,
    Column("plan_id", Uuid, ForeignKey("plans.id", ondelete="CASCADE"), primary_key=True),
    Column("id", Text, primary_key=True),
    Column("thread_id", Uuid, nullable=False),
    Column("position", Integer, nullable=False),
    Column("planned", JSONB, nullable=False),
    Column("progress", JSONB, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Index("plan_steps_thread_id_revision_idx", "thread_id", "revision"),
    postgresql_with=OFTEN_UPDATED,
)

plan_events = Table(
    "plan_events",
    metadata,
    Column("plan_id", Uuid, ForeignKey("plans.id", ondelete="CASCADE"), primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("thread_id", Uuid, nullable=False),
    Column("data", JSONB, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Index("plan_events_thread_id_revision_idx", "thread_id", "revision"),
    postgresql_with=INSERT_ONLY,
)
