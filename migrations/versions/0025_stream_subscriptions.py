"""Add subscriptions to durable streams."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

OFTEN_UPDATED = {
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_threshold": "200",
    "autovacuum_analyze_scale_factor": "0.02",
}
INDEXES: dict[str, tuple[list[str], bool, str | None]] = {
    "stream_subscriptions_space_id_name_idx": (["space_id", "name"], True, None),
    "stream_subscriptions_user_id_idx": (["user_id"], False, "user_id IS NOT NULL"),
    "stream_subscriptions_due_at_idx": (["due_at"], False, "due_at IS NOT NULL"),
}


def upgrade() -> None:
    op.create_table(
        "stream_subscriptions",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("space_id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("config", postgresql.JSONB(), nullable=False),
        sa.Column("config_digest", sa.LargeBinary(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("token_key", sa.LargeBinary(), nullable=False),
        sa.Column("generation", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("wake_id", sa.Text(), nullable=True),
        sa.Column("holder", sa.Text(), nullable=True),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("user_id IS NULL OR user_id = space_id", name=op.f("stream_subscriptions_space_id_check")),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("stream_subscriptions_user_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("stream_subscriptions_pkey")),
        postgresql_with=OFTEN_UPDATED,
    )
    for name, (columns, unique, condition) in INDEXES.items():
        where = None if condition is None else sa.text(condition)
        op.create_index(name, "stream_subscriptions", columns, unique=unique, postgresql_where=where)
    op.create_table(
        "stream_links",
        sa.Column("subscription_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("explicit", sa.Boolean(), nullable=False),
        sa.Column("stream_id", sa.Uuid(), nullable=True),
        sa.Column("acked_position", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["subscription_id"],
            ["stream_subscriptions.id"],
            name=op.f("stream_links_subscription_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("subscription_id", "name", name=op.f("stream_links_pkey")),
        postgresql_with=OFTEN_UPDATED,
    )
    op.create_table(
        "stream_signing_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("private_key", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("stream_signing_keys_pkey")),
    )


def downgrade() -> None:
    for table in ("stream_signing_keys", "stream_links", "stream_subscriptions"):
        op.drop_table(table)
