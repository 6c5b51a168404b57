"""The table of schedules."""

from sqlalchemy import CheckConstraint, Column, Index, Integer, Table, Text, Uuid, text
from sqlalchemy.dialects.postgresql import JSONB

from khala.store.schema.autovacuum import OFTEN_UPDATED
from khala.store.schema.columns import metadata, time_column

schedules = Table(
    "schedules",
    metadata,
    Column("id", Uuid, primary_key=True),
    # The account as which the schedule acts.
    Column("user_id", Uuid, nullable=False),
    Column("name", Text),
    # Without a thread, each occurrence has a thread of its own.
    Column("thread_id", Uuid),
    # The plan to start, or the message to send. A delayed send has the id of its message.
    Column("plan_id", Uuid),
    Column("message", Text),
    Column("message_id", Uuid),
    Column("options", JSONB),
    # `khala.domain.schedules.Timing`
    Column("timing", JSONB, nullable=False),
    Column("status", Text, nullable=False),
    Column("reason", Text),
    # The occurrence to fire next, and when to look at it: later than its time after a failure, or while it is fired.
    time_column("occurrence_at", nullable=True),
    time_column("due_at", nullable=True),
    time_column("lease_expires_at", nullable=True),
    # A process that fires an occurrence records it under this epoch only.
    Column("epoch", Integer, nullable=False, server_default="0"),
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("error", Text),
    time_column("last_at", nullable=True),
    Column("last_thread_id", Uuid),
    Column("last_run_id", Uuid),
    time_column("created_at"),
    time_column("updated_at"),
    CheckConstraint("status IN ('active', 'paused', 'ended')", name="status"),
    CheckConstraint("(due_at IS NOT NULL) = (status = 'active')", name="due"),
    Index("schedules_due_idx", "due_at", postgresql_where=text("due_at IS NOT NULL")),
    Index("schedules_user_id_created_at_idx", "user_id", "created_at", "id"),
    Index("schedules_created_at_idx", "created_at", "id"),
    Index("schedules_thread_id_idx", "thread_id", postgresql_where=text("thread_id IS NOT NULL")),
    Index("schedules_ended_idx", "updated_at", postgresql_where=text("status = 'ended'")),
    postgresql_with=OFTEN_UPDATED,
)
