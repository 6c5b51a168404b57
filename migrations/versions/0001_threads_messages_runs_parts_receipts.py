"""Threads, messages, runs, parts and receipts."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _message_parts()
    _threads()
    _messages()
    _receipts()
    _runs()


def _message_parts() -> None:
    op.create_table(
        "message_parts",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("message_id", sa.Uuid(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("message_parts_pkey")),
    )
    op.create_index("message_parts_thread_id_revision_idx", "message_parts", ["thread_id", "revision"], unique=False)


def _threads() -> None:
    op.create_table(
        "threads",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("owner_id", sa.Uuid(), nullable=True),
        sa.Column("anon_key_hash", sa.LargeBinary(), nullable=True),
        sa.Column("title", sa.Text(), nullable=True),
        sa.Column("visibility", sa.Text(), server_default="private", nullable=False),
        sa.Column("revision", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("meta_revision", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("reset_revision", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("active_leaf", sa.Uuid(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("visibility IN ('private', 'link', 'public')", name=op.f("threads_visibility_check")),
        sa.PrimaryKeyConstraint("id", name=op.f("threads_pkey")),
        postgresql_with={"fillfactor": 70},
    )
    op.create_index("threads_anon_key_hash_idx", "threads", ["anon_key_hash", "created_at", "id"], unique=False)


def _messages() -> None:
    op.create_table(
        "messages",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("parent_id", sa.Uuid(), nullable=True),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("author_id", sa.Uuid(), nullable=True),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("seq", sa.Integer(), server_default="0", nullable=False),
        sa.Column("content", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("finish", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("role IN ('user', 'assistant', 'system')", name=op.f("messages_role_check")),
        sa.CheckConstraint(
            "status IN ('draft', 'streaming', 'final', 'error', 'canceled')", name=op.f("messages_status_check")
        ),
        sa.ForeignKeyConstraint(
            ["thread_id"], ["threads.id"], name=op.f("messages_thread_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("messages_pkey")),
    )
    op.create_index("messages_thread_id_position_key", "messages", ["thread_id", "position"], unique=True)
    op.create_index("messages_thread_id_revision_idx", "messages", ["thread_id", "revision"], unique=False)


def _receipts() -> None:
    op.create_table(
        "receipts",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("tool_call_id", sa.Text(), nullable=True),
        sa.Column("data", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("cost_usd", sa.Numeric(precision=20, scale=10), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("type IN ('model', 'tool')", name=op.f("receipts_type_check")),
        sa.ForeignKeyConstraint(
            ["thread_id"], ["threads.id"], name=op.f("receipts_thread_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("receipts_pkey")),
    )
    op.create_index("receipts_thread_id_idx", "receipts", ["thread_id"], unique=False)


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("message_id", sa.Uuid(), nullable=False),
        sa.Column("user_message_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("fairness_key", sa.Uuid(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("options", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("steps", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("lease_owner", sa.Text(), nullable=True),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finish", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "status IN ('queued', 'running', 'blocked', 'final', 'error', 'canceled')", name=op.f("runs_status_check")
        ),
        sa.ForeignKeyConstraint(["thread_id"], ["threads.id"], name=op.f("runs_thread_id_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("runs_pkey")),
    )
    op.create_index(
        "runs_active_idx",
        "runs",
        ["status", "id"],
        unique=False,
        postgresql_where=sa.text("status IN ('queued', 'running', 'blocked')"),
    )
    op.create_index("runs_thread_id_idx", "runs", ["thread_id"], unique=False)
    op.create_index("runs_user_message_id_key", "runs", ["user_message_id"], unique=True)


def downgrade() -> None:
    op.drop_index("runs_user_message_id_key", table_name="runs")
    op.drop_index("runs_thread_id_idx", table_name="runs", if_exists=True)
    op.drop_index(
        "runs_active_idx", table_name="runs", postgresql_where=sa.text("status IN ('queued', 'running', 'blocked')")
    )
    op.drop_table("runs")
    op.drop_index("receipts_thread_id_idx", table_name="receipts")
    op.drop_table("receipts")
    op.drop_index("messages_thread_id_revision_idx", table_name="messages")
    op.drop_index("messages_thread_id_position_key", table_name="messages")
    op.drop_table("messages")
    op.drop_index("threads_anon_key_hash_idx", table_name="threads")
    op.drop_table("threads")
    op.drop_index("message_parts_thread_id_revision_idx", table_name="message_parts", if_exists=True)
    op.drop_table("message_parts")
