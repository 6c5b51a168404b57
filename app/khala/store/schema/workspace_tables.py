"""Tables of what people and agents store: blobs, files, todos and tools."""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from khala.store.schema.columns import metadata, time_column, user_id_column

# The objects of the blob store, by the SHA-256 of their content. `touched_at` is the last time at which a transaction
# referred to the object or was about to.
objects = Table(
    "objects",
    metadata,
    Column("sha256", LargeBinary, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("stored", Boolean, nullable=False, server_default="false"),
    time_column("touched_at"),
    Index("objects_touched_at_idx", "touched_at"),
)

# References of threads to objects. All callers who may read a thread may read its blobs.
blobs = Table(
    "blobs",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("thread_id", Uuid, nullable=False),
    Column("run_id", Uuid),
    Column("sha256", LargeBinary, ForeignKey("objects.sha256"), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("media_type", Text, nullable=False),
    Column("name", Text),
    Column("preview", Text, nullable=False, server_default=""),
    # Of an upload: its author, and whether a message refers to it by now.
    Column("author_id", Uuid),
    Column("attached", Boolean, nullable=False, server_default="true"),
    time_column("created_at"),
    time_column("expires_at", nullable=True),
    # For searches: the words of a text, empty for other blobs, and the message that the blob belongs to. Null: not yet.
    Column("signature", LargeBinary),
    Column("message_id", Uuid),
    Index("blobs_thread_id_idx", "thread_id"),
    Index("blobs_size_idx", "size", "id"),
    Index("blobs_sha256_idx", "sha256"),
    Index("blobs_expires_at_idx", "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
    Index("blobs_waiting_idx", "author_id", postgresql_where=text("NOT attached")),
    Index("blobs_unsigned_idx", "id", postgresql_where=text("attached AND signature IS NULL")),
    Index("blobs_searched_idx", "thread_id", "id", postgresql_where=text("message_id IS NOT NULL")),
)

# The files of a workspace: a user's, or that of a guest's thread. Paths are only names, not those of a file system.
files = Table(
    "files",
    metadata,
    Column("owner_id", Uuid, primary_key=True),
    Column("path", Text, primary_key=True),
    Column("content", LargeBinary, nullable=False),
    time_column("changed_at"),
)

todos = Table(
    "todos",
    metadata,
    Column("owner_id", Uuid, primary_key=True),
    Column("id", Integer, primary_key=True),
    Column("text", Text, nullable=False),
    # The idempotency key of the call that created it: the same call again creates no second todo.
    Column("key", Text),
    time_column("created_at"),
    time_column("completed_at", nullable=True),
    Index("todos_owner_id_key_key", "owner_id", "key", unique=True),
)

# Tools that a model has written for a user, and the user's decision about them.
user_tools = Table(
    "user_tools",
    metadata,
    user_id_column(primary_key=True),
    Column("name", Text, primary_key=True),
    Column("description", Text, nullable=False),
    Column("parameters", JSONB, nullable=False),
    Column("language", Text, nullable=False),
    Column("code", Text, nullable=False),
    Column("permissions", ARRAY(Text), nullable=False),
    Column("timeout", SmallInteger, nullable=False),
    Column("idempotent", Boolean, nullable=False),
    Column("state", Text, nullable=False, server_default="pending"),
    time_column("created_at"),
    time_column("decided_at", nullable=True),
    CheckConstraint("state IN ('pending', 'approved', 'rejected')", name="state"),
)
