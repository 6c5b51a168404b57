"""Tools: approvals, blobs, workspace files, todos, users' own tools, tool rules, and the hash chain of receipts."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "files",
        sa.Column("owner_id", sa.Uuid(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("owner_id", "path", name=op.f("files_pkey")),
    )
    op.create_table(
        "objects",
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("stored", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("touched_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("objects_pkey")),
    )
    op.create_index("objects_touched_at_idx", "objects", ["touched_at"], unique=False)
    op.create_table(
        "todos",
        sa.Column("owner_id", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("owner_id", "id", name=op.f("todos_pkey")),
    )
    op.create_index("todos_owner_id_key_key", "todos", ["owner_id", "key"], unique=True)
    op.create_table(
        "blobs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("media_type", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("preview", sa.Text(), server_default="", nullable=False),
        sa.Column("author_id", sa.Uuid(), nullable=True),
        sa.Column("attached", sa.Boolean(), server_default="true", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["sha256"], ["objects.sha256"], name=op.f("blobs_sha256_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("blobs_pkey")),
    )
    op.create_index(
        "blobs_expires_at_idx",
        "blobs",
        ["expires_at"],
        unique=False,
        postgresql_where=sa.text("expires_at IS NOT NULL"),
    )
    op.create_index("blobs_sha256_idx", "blobs", ["sha256"], unique=False)
    op.create_index("blobs_thread_id_idx", "blobs", ["thread_id"], unique=False)
    op.create_index("blobs_waiting_idx", "blobs", ["author_id"], unique=False, postgresql_where=sa.text("NOT attached"))
    op.create_table(
        "detail_tokens",
        sa.Column("token_hash", sa.LargeBinary(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("tool_call_id", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["thread_id"], ["threads.id"], name=op.f("detail_tokens_thread_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("detail_tokens_pkey")),
    )
    op.create_index("detail_tokens_expires_at_idx", "detail_tokens", ["expires_at"], unique=False)
    op.create_index("detail_tokens_thread_id_idx", "detail_tokens", ["thread_id"], unique=False)
    op.create_table(
        "user_tools",
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("parameters", postgresql.JSONB(), nullable=False),
        sa.Column("language", sa.Text(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("permissions", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("timeout", sa.SmallInteger(), nullable=False),
        sa.Column("idempotent", sa.Boolean(), nullable=False),
        sa.Column("state", sa.Text(), server_default="pending", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('pending', 'approved', 'rejected')", name=op.f("user_tools_state_check")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("user_tools_user_id_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("user_id", "name", name=op.f("user_tools_pkey")),
    )
    op.create_table(
        "approvals",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("tool_call_id", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("args", postgresql.JSONB(), nullable=False),
        sa.Column("parameters", postgresql.JSONB(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="pending", nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("edited_args", postgresql.JSONB(), nullable=True),
        sa.Column("decided_by", sa.Uuid(), nullable=True),
        sa.Column("decided_name", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('pending', 'approved', 'denied', 'expired')", name=op.f("approvals_state_check")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("approvals_run_id_fkey"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["thread_id"], ["threads.id"], name=op.f("approvals_thread_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "tool_call_id", name=op.f("approvals_pkey")),
    )
    op.create_index(
        "approvals_pending_idx",
        "approvals",
        ["expires_at"],
        unique=False,
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index("approvals_thread_id_idx", "approvals", ["thread_id"], unique=False)
    op.add_column("receipts", sa.Column("hash", sa.LargeBinary(), nullable=True))
    op.add_column("runs", sa.Column("user_id", sa.Uuid(), nullable=True))
    op.add_column("runs", sa.Column("lost", sa.SmallInteger(), server_default="0", nullable=False))
    op.add_column("threads", sa.Column("tool_rules", postgresql.JSONB(), nullable=True))
    op.add_column("users", sa.Column("tool_rules", postgresql.JSONB(), nullable=True))


def downgrade() -> None:
    op.drop_column("users", "tool_rules")
    op.drop_column("threads", "tool_rules")
    op.drop_column("runs", "lost")
    op.drop_column("runs", "user_id")
    op.drop_column("receipts", "hash")
    op.drop_index("approvals_thread_id_idx", table_name="approvals")
    op.drop_index("approvals_pending_idx", table_name="approvals", postgresql_where=sa.text("state = 'pending'"))
    op.drop_table("approvals")
    op.drop_table("user_tools")
    op.drop_index("detail_tokens_thread_id_idx", table_name="detail_tokens")
    op.drop_index("detail_tokens_expires_at_idx", table_name="detail_tokens")
    op.drop_table("detail_tokens")
    op.drop_index("blobs_waiting_idx", table_name="blobs", postgresql_where=sa.text("NOT attached"))
    op.drop_index("blobs_thread_id_idx", table_name="blobs")
    op.drop_index("blobs_sha256_idx", table_name="blobs")
    op.drop_index("blobs_expires_at_idx", table_name="blobs", postgresql_where=sa.text("expires_at IS NOT NULL"))
    op.drop_table("blobs")
    op.drop_index("todos_owner_id_key_key", table_name="todos")
    op.drop_table("todos")
    op.drop_index("objects_touched_at_idx", table_name="objects")
    op.drop_table("objects")
    op.drop_table("files")
