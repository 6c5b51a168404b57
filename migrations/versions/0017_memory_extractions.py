"""Add extractions of memories, and receipts of calls that no run has made."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "memory_extractions",
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=True),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempts", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("requests", sa.Integer(), server_default="0", nullable=False),
        sa.Column("worker_id", sa.Uuid(), nullable=True),
        sa.Column("leased_until", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["thread_id"], ["threads.id"], name=op.f("memory_extractions_thread_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("thread_id", "subject_id", name=op.f("memory_extractions_pkey")),
    )
    op.create_index("memory_extractions_subject_id_idx", "memory_extractions", ["subject_id"])
    op.create_index(
        "memory_extractions_due_at_idx",
        "memory_extractions",
        ["due_at"],
        postgresql_where=sa.text("due_at IS NOT NULL"),
    )
    op.create_table(
        "usage_receipts",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=True),
        sa.Column("thread_id", sa.Uuid(), nullable=True),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("data", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("cost_usd", sa.Numeric(precision=20, scale=10), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("purpose IN ('extraction', 'embedding')", name=op.f("usage_receipts_purpose_check")),
        sa.PrimaryKeyConstraint("id", name=op.f("usage_receipts_pkey")),
    )
    op.create_index("usage_receipts_user_id_idx", "usage_receipts", ["user_id", "id"])
    op.create_index("usage_receipts_thread_id_idx", "usage_receipts", ["thread_id"])
    op.create_index("usage_receipts_created_at_idx", "usage_receipts", ["created_at"])


def downgrade() -> None:
    op.drop_table("usage_receipts")
    op.drop_table("memory_extractions")
