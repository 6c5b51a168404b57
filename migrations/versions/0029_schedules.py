"""Add schedules."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

OFTEN_UPDATED = {
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_threshold": "200",
    "autovacuum_analyze_scale_factor": "0.02",
}
INDEXES: dict[str, tuple[list[str], str | None]] = {
    "schedules_due_idx": (["due_at"], "due_at IS NOT NULL"),
    "schedules_user_id_created_at_idx": (["user_id", "created_at", "id"], None),
    "schedules_thread_id_idx": (["thread_id"], "thread_id IS NOT NULL"),
    "schedules_ended_idx": (["updated_at"], "status = 'ended'"),
}


def upgrade() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("thread_id", sa.Uuid(), nullable=True),
        sa.Column("plan_id", sa.Uuid(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("message_id", sa.Uuid(), nullable=True),
        sa.Column("options", postgresql.JSONB(), nullable=True),
        sa.Column("timing", postgresql.JSONB(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("occurrence_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_thread_id", sa.Uuid(), nullable=True),
        sa.Column("last_run_id", sa.Uuid(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("status IN ('active', 'paused', 'ended')", name=op.f("schedules_status_check")),
        sa.CheckConstraint("(due_at IS NOT NULL) = (status = 'active')", name=op.f("schedules_due_check")),
        sa.PrimaryKeyConstraint("id", name=op.f("schedules_pkey")),
        postgresql_with=OFTEN_UPDATED,
    )
    for name, (columns, condition) in INDEXES.items():
        where = None if condition is None else sa.text(condition)
        op.create_index(name, "schedules", columns, postgresql_where=where)


def downgrade() -> None:
    op.drop_table("schedules")
