"""Tables of threads: messages, users' thread lists and presence."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from khala.store.schema.autovacuum import INSERTED_AND_CHANGED, OFTEN_UPDATED
from khala.store.schema.columns import metadata, required_time_column, thread_id_column, time_column, user_id_column

threads = Table(
    "threads",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("owner_id", Uuid),
    Column("anon_key_hash", LargeBinary),
    Column("title", Text),
    Column("visibility", Text, nullable=False, server_default="private"),
    # Changes with every flush. No index may include it or `updated_at`, so that updates stay HOT.
    Column("revision", BigInteger, nullable=False, server_default="0"),
    Column("meta_revision", BigInteger, nullable=False, server_default="0"),
    Column("reset_revision", BigInteger, nullable=False, server_default="0"),
    # The newest revision of parts that were packed, and of a plan that was deleted. An earlier cursor gets a snapshot,
    # because these revisions are gone.
    Column("packed_revision", BigInteger),
    # Changes at every change of access. Subscriptions that were authorised at an earlier value are rechecked.
    Column("access_id", Uuid, nullable=False, server_default=text("gen_random_uuid()")),
    # The message that the next message follows by default.
    Column("active_leaf", Uuid),
    Column("tool_rules", JSONB),
    # The user, or the author id of the key, that set the rules. The rules loosen nothing for other requesters' calls.
    Column("tool_rules_by", Uuid),
    time_column("created_at"),
    time_column("updated_at"),
    # A deleted thread is closed at once; its contents are purged later (`purged_at`), and the row last.
    time_column("deleted_at", nullable=True),
    time_column("purged_at", nullable=True),
    # The newest revision with a change of a plan; null if the thread has had none.
    Column("plans_revision", BigInteger),
    # What a client has attached to the thread as a conversation of OpenAI's protocol.
    Column("client_metadata", JSONB(none_as_null=True)),
    CheckConstraint("visibility IN ('private', 'link', 'public')", name="visibility"),
    Index("threads_anon_key_hash_idx", "anon_key_hash", "created_at", "id"),
    Index("threads_owner_id_idx", "owner_id"),
    Index("threads_unclaimed_idx", "created_at", "id", postgresql_where=text("owner_id IS NULL")),
    Index("threads_deleted_at_idx", "deleted_at", postgresql_where=text("deleted_at IS NOT NULL")),
    Index(
        "threads_unpurged_idx",
        "deleted_at",
        postgresql_where=text("deleted_at IS NOT NULL AND purged_at IS NULL"),
    ),
    # The order of the pages of a thread list.
    Index(
        "threads_owner_id_created_at_idx",
        "owner_id",
        "created_at",
        "id",
        postgresql_where=text("deleted_at IS NULL"),
    ),
    # The order of the console's list.
    Index("threads_created_at_idx", "created_at", "id", postgresql_where=text("deleted_at IS NULL")),
    # HOT updates need room on each page for the next versions of its rows.
    postgresql_with={"fillfactor": 70} | OFTEN_UPDATED,
)

messages = Table(
    "messages",
    metadata,
    Column("id", Uuid, primary_key=True),
    thread_id_column(),
    Column("position", Integer, nullable=False),
    Column("parent_id", Uuid),
    Column("role", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("author_id", Uuid),
    Column("author_name", Text),
    Column("run_id", Uuid),
    Column("seq", Integer, nullable=False, server_default="0"),
    Column("content", JSONB),
    Column("finish", JSONB),
    Column("revision", BigInteger, nullable=False),
    time_column("created_at"),
    time_column("updated_at"),
    # The step of a plan, if the message is its task or its answer.
    Column("step", JSONB(none_as_null=True)),
    CheckConstraint("role IN ('user', 'assistant', 'system')", name="role"),
    CheckConstraint("status IN ('draft', 'streaming', 'final', 'error', 'canceled')", name="status"),
    Index("messages_thread_id_position_key", "thread_id", "position", unique=True),
    Index("messages_thread_id_revision_idx", "thread_id", "revision"),
    Index("messages_author_id_idx", "author_id", postgresql_where=text("author_id IS NOT NULL")),
    postgresql_with=INSERTED_AND_CHANGED,
)

# Threads that expire and are on no thread list.
ephemeral_threads = Table(
    "ephemeral_threads",
    metadata,
    thread_id_column(primary_key=True),
    required_time_column("expires_at"),
    # Whether its runs may use more than the memories of the thread.
    Column("recalls", Boolean, nullable=False, server_default="true"),
    Index("ephemeral_threads_expires_at_idx", "expires_at"),
)

# What resets have deleted and the purge has not: rows that no reader sees (`reset_marks`). No foreign key to `threads`:
# its creation would wait for all transactions that write to that table.
thread_resets = Table(
    "thread_resets",
    metadata,
    Column("thread_id", Uuid, primary_key=True),
    # The position of the first message after the reset.
    Column("first_position", Integer, nullable=False),
    # The thread's revision that the reset created.
    Column("revision", BigInteger, nullable=False),
    required_time_column("reset_at"),
)

# The entries of users' thread lists. No foreign key to `threads`: an entry that is gone stays for a while, so that
# clients learn of it.
listings = Table(
    "listings",
    metadata,
    user_id_column(primary_key=True),
    Column("thread_id", Uuid, primary_key=True),
    Column("revision", BigInteger, nullable=False),
    # The thread's revision of the last message or answer by others, and the revision up to which the user has read.
    Column("said_revision", BigInteger, nullable=False, server_default="0"),
    Column("read_revision", BigInteger, nullable=False, server_default="0"),
    Column("gone", Boolean, nullable=False, server_default="false"),
    # Where the user keeps the thread.
    Column("pinned", Boolean, nullable=False, server_default="false"),
    Column("archived", Boolean, nullable=False, server_default="false"),
    Column("folder", Text),
    time_column("changed_at"),
    # The order of the account feed.
    Index("listings_user_id_revision_thread_id_idx", "user_id", "revision", "thread_id"),
    Index("listings_thread_id_idx", "thread_id"),
    Index("listings_gone_idx", "changed_at", postgresql_where=text("gone")),
    postgresql_with=OFTEN_UPDATED,
)

# Processes that report presence. Unlogged: after a crash of the database they report again.
processes = Table(
    "processes",
    metadata,
    Column("id", Uuid, primary_key=True),
    time_column("beat_at"),
    prefixes=["UNLOGGED"],
)

presences = Table(
    "presences",
    metadata,
    Column("thread_id", Uuid, primary_key=True),
    Column("participant_id", Uuid, primary_key=True),
    Column("process_id", Uuid, ForeignKey("processes.id", ondelete="CASCADE"), nullable=False),
    Column("user_id", Uuid),
    Column("name", Text),
    Column("state", JSONB, nullable=False),
    time_column("changed_at"),
    Index("presences_process_id_idx", "process_id"),
    prefixes=["UNLOGGED"],
)
