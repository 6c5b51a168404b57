"""Add webhooks: their endpoints, and the outbox of events."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

OFTEN_UPDATED = {
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_threshold": "200",
    "autovacuum_analyze_scale_factor": "0.02",
}
INDEXES: dict[str, tuple[str, list[str], str | None]] = {
    "webhook_endpoints_scope_id_idx": ("webhook_endpoints", ["scope_id"], "deleted_at IS NULL"),
    "webhook_endpoints_deleted_at_idx": ("webhook_endpoints", ["deleted_at"], "deleted_at IS NOT NULL"),
    "webhook_deliveries_pending_idx": (
        "webhook_deliveries",
        ["endpoint_id", "thread_id", "seq"],
        "state = 'pending'",
    ),
    "webhook_deliveries_due_idx": ("webhook_deliveries", ["endpoint_id", "due_at", "seq"], "due_at IS NOT NULL"),
    "webhook_deliveries_claimed_idx": ("webhook_deliveries", ["endpoint_id"], "claim_id IS NOT NULL"),
    "webhook_deliveries_created_at_idx": ("webhook_deliveries", ["created_at"], None),
}


def upgrade() -> None:
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("scope_id", sa.Uuid(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), server_default="", nullable=False),
        sa.Column("events", postgresql.ARRAY(sa.Text()), server_default="{}", nullable=False),
        sa.Column("include_content", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("previous_secret", sa.LargeBinary(), nullable=True),
        sa.Column("previous_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("is_enabled", sa.Boolean(), server_default="true", nullable=False),
        sa.Column("disabled_reason", sa.Text(), nullable=True),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failing_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("paused_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("webhook_endpoints_pkey")),
        postgresql_with=OFTEN_UPDATED,
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("endpoint_id", sa.Uuid(), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("data", postgresql.JSONB(), nullable=False),
        sa.Column("state", sa.Text(), server_default="pending", nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("claim_id", sa.Uuid(), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("first_attempt_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("response_status", sa.Integer(), nullable=True),
        sa.Column("response", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("duration_ms", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("state IN ('pending', 'delivered', 'failed')", name=op.f("webhook_deliveries_state_check")),
        sa.PrimaryKeyConstraint("endpoint_id", "seq", name=op.f("webhook_deliveries_pkey")),
        postgresql_with=OFTEN_UPDATED,
    )
    op.execute("CREATE SEQUENCE webhook_deliveries_seq OWNED BY webhook_deliveries.seq")
    for name, (table, columns, condition) in INDEXES.items():
        where = None if condition is None else sa.text(condition)
        op.create_index(name, table, columns, postgresql_where=where)


def downgrade() -> None:
    for table in ("webhook_deliveries", "webhook_endpoints"):
        op.drop_table(table)
