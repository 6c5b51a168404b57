"""Accounts, sessions, tokens, memberships, links, presence, thread lists, budgets and the audit log."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _audit()
    _budgets()
    _processes()
    _usage_ledger()
    _users()
    _api_tokens()
    _identities()
    _listings()
    _memberships()
    _oidc_logins()
    _passwords()
    _presences()
    _sessions()
    _share_links()
    _columns()


def _audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=True),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=True),
        sa.Column("network", sa.Text(), nullable=True),
        sa.Column("detail", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("audit_pkey")),
    )
    op.create_index("audit_created_at_idx", "audit", ["created_at"], unique=False)
    op.create_index("audit_user_id_idx", "audit", ["user_id", "id"], unique=False)


def _budgets() -> None:
    op.create_table(
        "budgets",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("measure", sa.Text(), nullable=False),
        sa.Column("starts_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reserved", sa.Numeric(precision=20, scale=10), server_default="0", nullable=False),
        sa.Column("settled", sa.Numeric(precision=20, scale=10), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("scope", "key", "measure", "starts_at", name=op.f("budgets_pkey")),
        postgresql_with={"fillfactor": 70},
    )
    op.create_index("budgets_ends_at_idx", "budgets", ["ends_at"], unique=False)


def _processes() -> None:
    op.create_table(
        "processes",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("beat_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("processes_pkey")),
        prefixes=["UNLOGGED"],
    )


def _usage_ledger() -> None:
    op.create_table(
        "usage_ledger",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("measure", sa.Text(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("starts_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reserved", sa.Numeric(precision=20, scale=10), nullable=False),
        sa.Column("settled", sa.Numeric(precision=20, scale=10), nullable=True),
        sa.Column("most", sa.Numeric(precision=20, scale=10), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "scope", "measure", name=op.f("usage_ledger_pkey")),
    )
    op.create_index("usage_ledger_created_at_idx", "usage_ledger", ["created_at"], unique=False)


def _users() -> None:
    op.create_table(
        "users",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("email", sa.Text(), nullable=True),
        sa.Column("revision", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("floor_revision", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("users_pkey")),
        postgresql_with={"fillfactor": 70},
    )


def _api_tokens() -> None:
    op.create_table(
        "api_tokens",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("secret_hash", sa.LargeBinary(), nullable=False),
        sa.Column("scopes", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("api_tokens_user_id_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("api_tokens_pkey")),
    )
    op.create_index("api_tokens_secret_hash_key", "api_tokens", ["secret_hash"], unique=True)
    op.create_index("api_tokens_user_id_idx", "api_tokens", ["user_id"], unique=False)


def _identities() -> None:
    op.create_table(
        "identities",
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("email", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("identities_user_id_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("issuer", "subject", name=op.f("identities_pkey")),
    )
    op.create_index("identities_user_id_idx", "identities", ["user_id"], unique=False)


def _listings() -> None:
    op.create_table(
        "listings",
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("said_revision", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("read_revision", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("gone", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("listings_user_id_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("user_id", "thread_id", name=op.f("listings_pkey")),
    )
    op.create_index("listings_thread_id_idx", "listings", ["thread_id"], unique=False)
    op.create_index("listings_user_id_revision_idx", "listings", ["user_id", "revision"], unique=False)


def _memberships() -> None:
    op.create_table(
        "memberships",
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("role IN ('viewer', 'editor', 'owner')", name=op.f("memberships_role_check")),
        sa.ForeignKeyConstraint(
            ["thread_id"], ["threads.id"], name=op.f("memberships_thread_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("memberships_user_id_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("thread_id", "user_id", name=op.f("memberships_pkey")),
    )
    op.create_index("memberships_user_id_idx", "memberships", ["user_id"], unique=False)


def _oidc_logins() -> None:
    op.create_table(
        "oidc_logins",
        sa.Column("state_hash", sa.LargeBinary(), nullable=False),
        sa.Column("nonce", sa.Text(), nullable=False),
        sa.Column("verifier", sa.Text(), nullable=False),
        sa.Column("return_to", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("oidc_logins_user_id_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("state_hash", name=op.f("oidc_logins_pkey")),
    )
    op.create_index("oidc_logins_expires_at_idx", "oidc_logins", ["expires_at"], unique=False)
    op.create_index("oidc_logins_user_id_idx", "oidc_logins", ["user_id"], unique=False)


def _passwords() -> None:
    op.create_table(
        "passwords",
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("email", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("passwords_user_id_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("user_id", name=op.f("passwords_pkey")),
    )
    op.create_index("passwords_email_key", "passwords", ["email"], unique=True)


def _presences() -> None:
    op.create_table(
        "presences",
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("participant_id", sa.Uuid(), nullable=False),
        sa.Column("process_id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=True),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("state", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["process_id"], ["processes.id"], name=op.f("presences_process_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("thread_id", "participant_id", name=op.f("presences_pkey")),
        prefixes=["UNLOGGED"],
    )
    op.create_index("presences_process_id_idx", "presences", ["process_id"], unique=False)


def _sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("secret_hash", sa.LargeBinary(), nullable=False),
        sa.Column("user_agent", sa.Text(), nullable=True),
        sa.Column("network", sa.Text(), nullable=True),
        sa.Column("id_token", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("sessions_user_id_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("sessions_pkey")),
    )
    op.create_index("sessions_expires_at_idx", "sessions", ["expires_at"], unique=False)
    op.create_index("sessions_secret_hash_key", "sessions", ["secret_hash"], unique=True)
    op.create_index("sessions_user_id_idx", "sessions", ["user_id"], unique=False)


def _share_links() -> None:
    op.create_table(
        "share_links",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("key_hash", sa.LargeBinary(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Uuid(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("role IN ('viewer', 'editor')", name=op.f("share_links_role_check")),
        sa.ForeignKeyConstraint(
            ["thread_id"], ["threads.id"], name=op.f("share_links_thread_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("share_links_pkey")),
    )
    op.create_index("share_links_key_hash_key", "share_links", ["key_hash"], unique=True)
    op.create_index("share_links_thread_id_idx", "share_links", ["thread_id"], unique=False)


def _columns() -> None:
    op.create_index(
        "messages_author_id_idx",
        "messages",
        ["author_id"],
        unique=False,
        postgresql_where=sa.text("author_id IS NOT NULL"),
    )
    op.add_column("messages", sa.Column("author_name", sa.Text(), nullable=True))
    op.add_column(
        "threads", sa.Column("access_id", sa.Uuid(), server_default=sa.text("gen_random_uuid()"), nullable=False)
    )
    op.add_column("threads", sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "threads_deleted_at_idx",
        "threads",
        ["deleted_at"],
        unique=False,
        postgresql_where=sa.text("deleted_at IS NOT NULL"),
    )
    op.create_index("threads_owner_id_idx", "threads", ["owner_id"], unique=False)
    op.create_index(
        "threads_unclaimed_idx",
        "threads",
        ["created_at", "id"],
        unique=False,
        postgresql_where=sa.text("owner_id IS NULL"),
    )


def downgrade() -> None:
    op.drop_index("messages_author_id_idx", table_name="messages", postgresql_where=sa.text("author_id IS NOT NULL"))
    op.drop_index("threads_unclaimed_idx", table_name="threads", postgresql_where=sa.text("owner_id IS NULL"))
    op.drop_index("threads_owner_id_idx", table_name="threads")
    op.drop_index("threads_deleted_at_idx", table_name="threads", postgresql_where=sa.text("deleted_at IS NOT NULL"))
    op.drop_column("threads", "deleted_at")
    op.drop_column("threads", "access_id")
    op.drop_column("messages", "author_name")
    op.drop_index("share_links_thread_id_idx", table_name="share_links")
    op.drop_index("share_links_key_hash_key", table_name="share_links")
    op.drop_table("share_links")
    op.drop_index("sessions_user_id_idx", table_name="sessions")
    op.drop_index("sessions_secret_hash_key", table_name="sessions")
    op.drop_index("sessions_expires_at_idx", table_name="sessions")
    op.drop_table("sessions")
    op.drop_index("presences_process_id_idx", table_name="presences")
    op.drop_table("presences")
    op.drop_index("passwords_email_key", table_name="passwords")
    op.drop_table("passwords")
    op.drop_index("oidc_logins_user_id_idx", table_name="oidc_logins")
    op.drop_index("oidc_logins_expires_at_idx", table_name="oidc_logins")
    op.drop_table("oidc_logins")
    op.drop_index("memberships_user_id_idx", table_name="memberships")
    op.drop_table("memberships")
    op.drop_index("listings_user_id_revision_idx", table_name="listings", if_exists=True)
    op.drop_index("listings_thread_id_idx", table_name="listings")
    op.drop_table("listings")
    op.drop_index("identities_user_id_idx", table_name="identities")
    op.drop_table("identities")
    op.drop_index("api_tokens_user_id_idx", table_name="api_tokens")
    op.drop_index("api_tokens_secret_hash_key", table_name="api_tokens")
    op.drop_table("api_tokens")
    op.drop_table("users")
    op.drop_index("usage_ledger_created_at_idx", table_name="usage_ledger")
    op.drop_table("usage_ledger")
    op.drop_table("processes")
    op.drop_index("budgets_ends_at_idx", table_name="budgets")
    op.drop_table("budgets")
    op.drop_index("audit_user_id_idx", table_name="audit")
    op.drop_index("audit_created_at_idx", table_name="audit")
    op.drop_table("audit")
