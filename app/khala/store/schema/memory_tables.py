"""Tables of memories, proposals and settings. Vectors are in tables of their own: `khala.store.memories.vectors`."""

from sqlalchemy import (
    ARRAY,
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

from khala.store.schema.columns import metadata, required_time_column, thread_id_column, time_column

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
    # Checked at the end of a transaction, because the newer memory is stored after the mark.
    Column("superseded_by", Uuid, ForeignKey("memories.id", ondelete="CASCADE", deferrable=True, initially="DEFERRED")),
    # The generation of its vector; 0 while it has none.
    Column("generation", SmallInteger, nullable=False, server_default="0"),
    time_column("created_at"),
    time_column("used_at", nullable=True),
    time_column("expires_at", nullable=True),
    CheckConstraint("scope IN ('user', 'thread', 'agent')", name="scope"),
    CheckConstraint("kind IN ('fact', 'preference', 'instruction', 'summary')", name="kind"),
    Index("memories_owner_id_idx", "owner_id", "id"),
    # The agents that have memories of an owner, however many memories the owner has.
    Index("memories_owner_id_agent_idx", "owner_id", "agent", postgresql_where=text("agent IS NOT NULL")),
    Index(
        "memories_space_id_fingerprint_key",
        "space_id",
        "fingerprint",
        unique=True,
        postgresql_where=text("superseded_by IS NULL"),
    ),
    # Without a list of pending entries, which each search would read from its beginning to its end.
    Index(
        "memories_terms_idx",
        "terms",
        postgresql_using="gin",
        postgresql_where=text("superseded_by IS NULL"),
        postgresql_with={"fastupdate": "off"},
    ),
    # Few different values, so that an entry takes 7 bytes.
    Index("memories_pending_idx", "generation", postgresql_where=text("superseded_by IS NULL")),
    Index("memories_thread_id_idx", "thread_id", postgresql_where=text("thread_id IS NOT NULL")),
    Index("memories_superseded_by_idx", "superseded_by", postgresql_where=text("superseded_by IS NOT NULL")),
    Index("memories_expires_at_idx", "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
)

# What accounts, guests and owners of threads have chosen. A null stands for the server's default.
memory_settings = Table(
    "memory_settings",
    metadata,
    # The user, the author id of an anonymous key, or the thread.
    Column("subject_id", Uuid, primary_key=True),
    # The key of a guest: the row is deleted when the key opens no thread any more.
    Column("anon_key_hash", LargeBinary),
    Column("recall", Boolean),
    Column("extraction", Text),
    # Of a thread: its owner's runs use the owner's personal memories, whoever can read the thread.
    Column("personal", Boolean),
    time_column("changed_at"),
    CheckConstraint("extraction IN ('off', 'ask', 'on')", name="extraction"),
    Index("memory_settings_anon_key_hash_idx", "anon_key_hash", postgresql_where=text("anon_key_hash IS NOT NULL")),
)

# Memories that the extraction proposes. A rejected one stays without its text, so that it is not proposed again.
memory_proposals = Table(
    "memory_proposals",
    metadata,
    Column("id", Uuid, primary_key=True),
    # The user, or the author id of an anonymous key, who decides.
    Column("subject_id", Uuid, nullable=False),
    # The space of the memory, see `memories`.
    Column("owner_id", Uuid, nullable=False),
    Column("scope", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("keywords", Text),
    Column("fingerprint", LargeBinary, nullable=False),
    Column("supersedes", Uuid),
    Column("thread_id", Uuid, nullable=False),
    Column("message_id", Uuid),
    Column("run_id", Uuid),
    Column("rejected", Boolean, nullable=False, server_default="false"),
    time_column("created_at"),
    required_time_column("expires_at"),
    CheckConstraint("scope IN ('user', 'thread')", name="scope"),
    CheckConstraint("kind IN ('fact', 'preference', 'instruction', 'summary')", name="kind"),
    Index("memory_proposals_subject_id_fingerprint_key", "subject_id", "fingerprint", unique=True),
    Index("memory_proposals_thread_id_idx", "thread_id"),
    Index("memory_proposals_expires_at_idx", "expires_at"),
)

# The extraction of memories from one person's messages in one thread, which begins after their runs.
memory_extractions = Table(
    "memory_extractions",
    metadata,
    thread_id_column(primary_key=True),
    # The user, or the author id of the thread's anonymous key.
    Column("subject_id", Uuid, primary_key=True),
    Column("user_id", Uuid),
    # The person's newest run.
    Column("run_id", Uuid, nullable=False),
    # The person's messages up to this position were read.
    Column("position", Integer, nullable=False),
    # Null while there is nothing to read.
    time_column("due_at", nullable=True),
    Column("attempts", SmallInteger, nullable=False, server_default="0"),
    # Counts the runs that have made the extraction due, so that none is lost that begins meanwhile.
    Column("requests", Integer, nullable=False, server_default="0"),
    Column("worker_id", Uuid),
    time_column("leased_until", nullable=True),
    Index("memory_extractions_subject_id_idx", "subject_id"),
    Index("memory_extractions_due_at_idx", "due_at", postgresql_where=text("due_at IS NOT NULL")),
)
