"""The table of memories. Their vectors are in tables of their own: `khala.store.memories.vectors`."""

from sqlalchemy import (
    ARRAY,
    CheckConstraint,
    Column,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    Uuid,
    text,
)

from khala.store.schema.columns import metadata, time_column

memories = Table(
    "memories",
    metadata,
    Column("id", Uuid, primary_key=True),
    # The user; or the thread, for the scope `thread` and for guests.
    Column("owner_id", Uuid, nullable=False),
    # The memories that are searched together: `MemorySpace.id`.
    Column("space_id", Uuid, nullable=False),
    Column("scope", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("agent", Text),
    Column("text", Text, nullable=False),
    Column("keywords", Text),
    # `fingerprint` of the text: a repetition is counted and not stored again.
    Column("fingerprint", LargeBinary, nullable=False),
    # `term_keys` of text and keywords.
    Column("terms", ARRAY(Integer), nullable=False),
    # Where it comes from. No foreign keys: they would cost a lookup and a row lock each.
    Column("thread_id", Uuid),
    Column("message_id", Uuid),
    Column("run_id", Uuid),
    # The idempotency key of the call that stored it.
    Column("key", Text),
    Column("uses", Integer, nullable=False, server_default="0"),
    Column("supersedes", Uuid),
    Column("superseded_by", Uuid),
    # The generation of its vector; 0 while it has none.
    Column("generation", SmallInteger, nullable=False, server_default="0"),
    time_column("created_at"),
    time_column("used_at", nullable=True),
    time_column("expires_at", nullable=True),
    CheckConstraint("scope IN ('user', 'thread', 'agent')", name="scope"),
    CheckConstraint("kind IN ('fact', 'preference', 'instruction', 'summary')", name="kind"),
    Index("memories_owner_id_idx", "owner_id", "id"),
    Index(
        "memories_space_id_fingerprint_key",
        "space_id",
        "fingerprint",
        unique=True,
        postgresql_where=text("superseded_by IS NULL"),
    ),
    Index("memories_terms_idx", "terms", postgresql_using="gin", postgresql_where=text("superseded_by IS NULL")),
    Index("memories_generation_idx", "generation", "id", postgresql_where=text("superseded_by IS NULL")),
    Index("memories_thread_id_idx", "thread_id", postgresql_where=text("thread_id IS NOT NULL")),
    Index("memories_expires_at_idx", "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
)
