"""Tables of access to threads: memberships, invitations and share links."""

from sqlalchemy import CheckConstraint, Column, Index, LargeBinary, Table, Text, Uuid, text

from khala.store.schema.columns import metadata, thread_id_column, time_column, user_id_column

memberships = Table(
    "memberships",
    metadata,
    thread_id_column(primary_key=True),
    user_id_column(primary_key=True),
    Column("role", Text, nullable=False),
    time_column("created_at"),
    CheckConstraint("role IN ('viewer', 'editor', 'owner')", name="role"),
    Index("memberships_user_id_idx", "user_id"),
)

# Memberships that their users have not accepted yet. A declined one is kept for a while, so that it is not sent again.
invitations = Table(
    "invitations",
    metadata,
    thread_id_column(primary_key=True),
    user_id_column(primary_key=True),
    Column("role", Text, nullable=False),
    # No foreign key to `users`: an invitation outlives the account of its sender. Null for a sender without an account.
    Column("invited_by", Uuid),
    time_column("created_at"),
    time_column("declined_at", nullable=True),
    CheckConstraint("role IN ('viewer', 'editor', 'owner')", name="role"),
    Index("invitations_user_id_idx", "user_id"),
    Index("invitations_declined_at_idx", "declined_at", postgresql_where=text("declined_at IS NOT NULL")),
)

# Share links, and thread tokens: `kind` is `link` or `token`.
share_links = Table(
    "share_links",
    metadata,
    Column("id", Uuid, primary_key=True),
    thread_id_column(),
    Column("key_hash", LargeBinary, nullable=False),
    Column("role", Text, nullable=False),
    Column("created_by", Uuid),
    time_column("created_at"),
    time_column("expires_at", nullable=True),
    Column("kind", Text, nullable=False, server_default="link"),
    CheckConstraint("role IN ('viewer', 'editor')", name="role"),
    Index("share_links_key_hash_key", "key_hash", unique=True),
    Index("share_links_thread_id_idx", "thread_id"),
)
