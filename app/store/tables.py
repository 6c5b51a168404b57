"""The one schema. Alembic's migrations equal it; a test says so."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    Table,
    Text,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

NAMES = {
    "ix": "%(table_name)s_%(column_0_N_name)s_idx",
    "uq": "%(table_name)s_%(column_0_N_name)s_key",
    "ck": "%(table_name)s_%(constraint_name)s_check",
    "fk": "%(table_name)s_%(column_0_name)s_fkey",
    "pk": "%(table_name)s_pkey",
}

metadata = MetaData(naming_convention=NAMES)


def _time(name: str, *, nullable: bool = False) -> Column[object]:
    default = None if nullable else func.now()
    return Column(name, DateTime(timezone=True), nullable=nullable, server_default=default)


def _thread_id(*, primary_key: bool = False) -> Column[object]:
    key = ForeignKey("threads.id", ondelete="CASCADE")
    return Column("thread_id", Uuid, key, nullable=False, primary_key=primary_key)


threads = Table(
    "threads",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("owner_id", Uuid),
    Column("anon_key_hash", LargeBinary),
    Column("title", Text),
    Column("visibility", Text, nullable=False, server_default="private"),
    # Changes with every flush: no index may name it or `updated_at`, so that updates stay HOT.
    Column("revision", BigInteger, nullable=False, server_default="0"),
    Column("meta_revision", BigInteger, nullable=False, server_default="0"),
    Column("reset_revision", BigInteger, nullable=False, server_default="0"),
    Column("active_leaf", Uuid),
    _time("created_at"),
    _time("updated_at"),
    CheckConstraint("visibility IN ('private', 'link', 'public')", name="visibility"),
    Index("threads_anon_key_hash_idx", "anon_key_hash", "created_at", "id"),
    # Room on each page for the next versions of its rows, which HOT needs.
    postgresql_with={"fillfactor": 70},
)

messages = Table(
    "messages",
    metadata,
    Column("id", Uuid, primary_key=True),
    _thread_id(),
    Column("position", Integer, nullable=False),
    Column("parent_id", Uuid),
    Column("role", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("author_id", Uuid),
    Column("run_id", Uuid),
    Column("seq", Integer, nullable=False, server_default="0"),
    Column("content", JSONB),
    Column("finish", JSONB),
    Column("revision", BigInteger, nullable=False),
    _time("created_at"),
    _time("updated_at"),
    CheckConstraint("role IN ('user', 'assistant', 'system')", name="role"),
    CheckConstraint("status IN ('draft', 'streaming', 'final', 'error', 'canceled')", name="status"),
    Index("messages_thread_id_position_key", "thread_id", "position", unique=True),
    Index("messages_thread_id_revision_idx", "thread_id", "revision"),
)

runs = Table(
    "runs",
    metadata,
    Column("id", Uuid, primary_key=True),
    _thread_id(),
    Column("message_id", Uuid, nullable=False),
    Column("user_message_id", Uuid, nullable=False),
    # The place of its question in the thread: runs of a thread go in this order.
    Column("position", Integer, nullable=False),
    # Whose turn it is among those who wait: the owner, or the thread of a caller without an account.
    Column("fairness_key", Uuid, nullable=False),
    Column("status", Text, nullable=False),
    Column("options", JSONB, nullable=False),
    Column("epoch", Integer, nullable=False, server_default="0"),
    Column("steps", SmallInteger, nullable=False, server_default="0"),
    Column("lease_owner", Text),
    _time("lease_expires_at", nullable=True),
    _time("cancel_requested_at", nullable=True),
    Column("finish", JSONB),
    _time("created_at"),
    _time("finished_at", nullable=True),
    CheckConstraint("status IN ('queued', 'running', 'blocked', 'final', 'error', 'canceled')", name="status"),
    Index("runs_user_message_id_key", "user_message_id", unique=True),
    Index("runs_thread_id_idx", "thread_id"),
    Index("runs_active_idx", "status", "id", postgresql_where=text("status IN ('queued', 'running', 'blocked')")),
)

message_parts = Table(
    "message_parts",
    metadata,
    Column("run_id", Uuid, primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("message_id", Uuid, nullable=False),
    Column("thread_id", Uuid, nullable=False),
    Column("kind", Text, nullable=False),
    Column("data", JSONB, nullable=False),
    Column("revision", BigInteger, nullable=False),
    _time("created_at"),
    # No foreign keys here: they would cost a lookup and a row lock a part; who deletes a thread deletes its parts.
    Index("message_parts_thread_id_revision_idx", "thread_id", "revision"),
)

receipts = Table(
    "receipts",
    metadata,
    Column("run_id", Uuid, primary_key=True),
    Column("seq", Integer, primary_key=True),
    _thread_id(),
    Column("type", Text, nullable=False),
    Column("tool_call_id", Text),
    Column("data", JSONB, nullable=False),
    Column("cost_usd", Numeric(20, 10)),
    _time("created_at"),
    CheckConstraint("type IN ('model', 'tool')", name="type"),
    Index("receipts_thread_id_idx", "thread_id"),
)
