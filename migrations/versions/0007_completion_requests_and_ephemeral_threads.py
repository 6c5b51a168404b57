"""Add completion requests, by which a retry joins the run of the first try, and ephemeral threads, which expire."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "ephemeral_threads",
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["thread_id"], ["threads.id"], name=op.f("ephemeral_threads_thread_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("thread_id", name=op.f("ephemeral_threads_pkey")),
    )
    op.create_index("ephemeral_threads_expires_at_idx", "ephemeral_threads", ["expires_at"], unique=False)
    op.create_table(
        "completion_requests",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("key_hash", sa.LargeBinary(), nullable=True),
        sa.Column("fingerprint", sa.LargeBinary(), nullable=False),
        sa.Column("first_attempt", sa.SmallInteger(), nullable=False),
        sa.Column("attempts", sa.SmallInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("completion_requests_pkey")),
    )
    op.create_index(
        "completion_requests_user_id_key_hash_key", "completion_requests", ["user_id", "key_hash"], unique=True
    )
    op.create_index(
        "completion_requests_user_id_fingerprint_idx",
        "completion_requests",
        ["user_id", "fingerprint", "created_at"],
        unique=False,
    )
    op.create_index("completion_requests_expires_at_idx", "completion_requests", ["expires_at"], unique=False)


def downgrade() -> None:
    op.drop_table("completion_requests")
    op.drop_table("ephemeral_threads")
