"""Add settings of memory, and proposed memories."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "memory_settings",
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("anon_key_hash", sa.LargeBinary(), nullable=True),
        sa.Column("recall", sa.Boolean(), nullable=True),
        sa.Column("extraction", sa.Text(), nullable=True),
        sa.Column("personal", sa.Boolean(), nullable=True),
        sa.Column("changed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("extraction IN ('off', 'ask', 'on')", name=op.f("memory_settings_extraction_check")),
        sa.PrimaryKeyConstraint("subject_id", name=op.f("memory_settings_pkey")),
    )
    op.create_index(
        "memory_settings_anon_key_hash_idx",
        "memory_settings",
        ["anon_key_hash"],
        postgresql_where=sa.text("anon_key_hash IS NOT NULL"),
    )
    op.create_table(
        "memory_proposals",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("owner_id", sa.Uuid(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("keywords", sa.Text(), nullable=True),
        sa.Column("fingerprint", sa.LargeBinary(), nullable=False),
        sa.Column("supersedes", sa.Uuid(), nullable=True),
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("message_id", sa.Uuid(), nullable=True),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("rejected", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("scope IN ('user', 'thread')", name=op.f("memory_proposals_scope_check")),
        sa.CheckConstraint(
            "kind IN ('fact', 'preference', 'instruction', 'summary')", name=op.f("memory_proposals_kind_check")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("memory_proposals_pkey")),
    )
    op.create_index(
        "memory_proposals_subject_id_fingerprint_key", "memory_proposals", ["subject_id", "fingerprint"], unique=True
    )
    op.create_index("memory_proposals_thread_id_idx", "memory_proposals", ["thread_id"])
    op.create_index("memory_proposals_expires_at_idx", "memory_proposals", ["expires_at"])


def downgrade() -> None:
    op.drop_table("memory_proposals")
    op.drop_table("memory_settings")
