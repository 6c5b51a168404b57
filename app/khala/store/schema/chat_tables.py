"""Tables of what people choose about their chats, and of the titles that models write."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from khala.store.schema.columns import metadata, required_time_column, thread_id_column, time_column

# Where the holder of a thread's anonymous key keeps it. Accounts have the same columns in `listings`.
guest_listings = Table(
    "guest_listings",
    metadata,
    thread_id_column(primary_key=True),
    Column("pinned", Boolean, nullable=False, server_default="false"),
    Column("archived", Boolean, nullable=False, server_default="false"),
    Column("folder", Text),
)

# What a deletion has taken from its thread, for as long as it can be undone.
thread_deletions = Table(
    "thread_deletions",
    metadata,
    thread_id_column(primary_key=True),
    Column("owner_id", Uuid),
    Column("anon_key_hash", LargeBinary),
    Column("title", Text),
    Column("visibility", Text, nullable=False),
    Column("client_metadata", JSONB(none_as_null=True)),
    # The memberships, as a list of `{user_id, role}`.
    Column("members", JSONB, nullable=False),
    required_time_column("expires_at"),
    Index("thread_deletions_expires_at_idx", "expires_at"),
    Index("thread_deletions_owner_id_idx", "owner_id"),
)

# What accounts and guests prefer in all chats.
preferences = Table(
    "preferences",
    metadata,
    # The user, or the author id of an anonymous key.
    Column("subject_id", Uuid, primary_key=True),
    # The key of a guest: the row is deleted when the key opens no thread any more.
    Column("anon_key_hash", LargeBinary),
    Column("instructions", Text),
    Column("model", Text),
    Column("titles", Boolean, nullable=False, server_default="true"),
    time_column("changed_at"),
    Index("preferences_changed_at_idx", "changed_at", postgresql_where=text("anon_key_hash IS NOT NULL")),
)

# The folders that accounts and guests have made or given settings. A folder without a row has a thread in it.
thread_folders = Table(
    "thread_folders",
    metadata,
    # The user, or the author id of an anonymous key.
    Column("subject_id", Uuid, primary_key=True),
    Column("name", Text, primary_key=True),
    # The key of a guest: the row is deleted when the key opens no thread any more.
    Column("anon_key_hash", LargeBinary),
    Column("instructions", Text),
    Column("agent", Text),
    time_column("changed_at"),
    Index("thread_folders_changed_at_idx", "changed_at", postgresql_where=text("anon_key_hash IS NOT NULL")),
)

# The files that an account keeps in a folder: references to objects, as those of threads in `blobs`.
folder_files = Table(
    "folder_files",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("user_id", Uuid, nullable=False),
    Column("folder", Text, nullable=False),
    Column("sha256", LargeBinary, ForeignKey("objects.sha256"), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("media_type", Text, nullable=False),
    Column("name", Text, nullable=False),
    time_column("created_at"),
    # The files go with their folder, and with its name.
    ForeignKeyConstraint(
        ["user_id", "folder"],
        ["thread_folders.subject_id", "thread_folders.name"],
        onupdate="CASCADE",
        ondelete="CASCADE",
    ),
    Index("folder_files_name_key", "user_id", "folder", "name", unique=True),
    Index("folder_files_sha256_idx", "sha256"),
)

message_feedback = Table(
    "message_feedback",
    metadata,
    Column("message_id", Uuid, ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True),
    # The user, or the author id of a key.
    Column("person_id", Uuid, primary_key=True),
    Column("thread_id", Uuid, nullable=False),
    Column("rating", Text, nullable=False),
    Column("reason", Text),
    time_column("created_at"),
    time_column("updated_at"),
    CheckConstraint("rating IN ('up', 'down')", name="rating"),
    Index("message_feedback_person_id_idx", "person_id"),
    Index("message_feedback_thread_id_idx", "thread_id"),
    # The order in which feedback is read for evaluation.
    Index("message_feedback_updated_at_idx", "updated_at", "message_id", "person_id"),
)

# Threads for which a model is to write a title.
title_jobs = Table(
    "title_jobs",
    metadata,
    thread_id_column(primary_key=True),
    # The user who requested the run, and that run. The call counts for them.
    Column("user_id", Uuid),
    Column("run_id", Uuid, nullable=False),
    Column("attempts", SmallInteger, nullable=False, server_default="0"),
    Column("worker_id", Uuid),
    time_column("leased_until", nullable=True),
    time_column("due_at"),
    Index("title_jobs_due_at_idx", "due_at"),
    Index("title_jobs_user_id_idx", "user_id", postgresql_where=text("user_id IS NOT NULL")),
)
