"""Add plans, their steps and their events."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

OFTEN_UPDATED = {
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_threshold": "200",
    "autovacuum_analyze_scale_factor": "0.02",
}
INSERT_ONLY = {
    "autovacuum_vacuum_scale_factor": "0.05",
    "autovacuum_vacuum_insert_scale_factor": "0.02",
    "autovacuum_vacuum_insert_threshold": "10000",
    "autovacuum_freeze_min_age": "0",
}


def upgrade() -> None:
    op.create_table(
        "plans",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=True),
        sa.Column("requester_key_id", sa.Uuid(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("state", postgresql.JSONB(), nullable=False),
        sa.Column("event_seq", sa.Integer(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("edited_revision", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("lease_owner", sa.Text(), nullable=True),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "status IN ('idle', 'running', 'pausing', 'paused', 'stopping', 'stopped')", name=op.f("plans_status_check")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("plans_pkey")),
        postgresql_with=OFTEN_UPDATED,
    )
    op.create_index("plans_thread_id_revision_idx", "plans", ["thread_id", "revision"])
    op.create_index(
        "plans_driven_idx",
        "plans",
        ["id"],
        postgresql_where=sa.text("status IN ('running', 'pausing', 'stopping')"),
    )
    op.create_table(
        "plan_steps",
        sa.Column("plan_id", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("planned", postgresql.JSONB(), nullable=False),
        sa.Column("progress", postgresql.JSONB(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.id"], name=op.f("plan_steps_plan_id_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("plan_id", "id", name=op.f("plan_steps_pkey")),
        postgresql_with=OFTEN_UPDATED,
    )
    op.create_index("plan_steps_thread_id_revision_idx", "plan_steps", ["thread_id", "revision"])
    op.create_table(
        "plan_events",
        sa.Column("plan_id", sa.Uuid(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("data", postgresql.JSONB(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.id"], name=op.f("plan_events_plan_id_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("plan_id", "seq", name=op.f("plan_events_pkey")),
        postgresql_with=INSERT_ONLY,
    )
    op.create_index("plan_events_thread_id_revision_idx", "plan_events", ["thread_id", "revision"])
    # One statement locks all tables that are in use, because a transaction that comes between two would hold the second
    # and wait for the first.
    op.execute("LOCK TABLE threads, messages, runs IN ACCESS EXCLUSIVE MODE")
    op.create_foreign_key(op.f("plans_thread_id_fkey"), "plans", "threads", ["thread_id"], ["id"], ondelete="CASCADE")
    # The plan of which a run is a step, and the step to which a message belongs.
    op.add_column("runs", sa.Column("plan_id", sa.Uuid(), nullable=True))
    op.add_column("messages", sa.Column("step", postgresql.JSONB(), nullable=True))
    # The newest revision with a change of a plan.
    op.add_column("threads", sa.Column("plans_revision", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("threads", "plans_revision")
    op.drop_column("messages", "step")
    op.drop_column("runs", "plan_id")
    op.drop_table("plan_events")
    op.drop_table("plan_steps")
    op.drop_table("plans")
