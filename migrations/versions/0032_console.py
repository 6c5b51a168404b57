"""Add what the operators' console needs: executors, counts of usage, and limits of single accounts."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

OFTEN_UPDATED = {
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_threshold": "200",
    "autovacuum_analyze_scale_factor": "0.02",
}
NOW = sa.text("now()")


def upgrade() -> None:
    op.execute("LOCK TABLE users IN ACCESS EXCLUSIVE MODE")
    op.add_column("users", sa.Column("budget_limits", postgresql.JSONB(), nullable=True))
    _create_executors()
    _create_rollup()
    _create_spend()
    _create_tools()
    op.create_table(
        "blob_owners",
        sa.Column("owner_id", sa.Uuid(), nullable=False),
        sa.Column("blobs", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("owner_id", name=op.f("blob_owners_pkey")),
    )
    op.create_index("blob_owners_bytes_idx", "blob_owners", ["bytes"])


def _create_executors() -> None:
    op.create_table(
        "executors",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("places", sa.Integer(), nullable=False),
        sa.Column("active", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("executors_pkey")),
        prefixes=["UNLOGGED"],
    )
    op.create_index("executors_seen_at_idx", "executors", ["seen_at"])


def _create_rollup() -> None:
    counts = ("objects", "bytes", "orphans", "orphan_bytes")
    op.create_table(
        "usage_rollup",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("counted_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("blobs_counted_at", sa.DateTime(timezone=True), nullable=True),
        *(sa.Column(name, sa.BigInteger(), server_default="0", nullable=False) for name in counts),
        sa.PrimaryKeyConstraint("id", name=op.f("usage_rollup_pkey")),
    )
    op.execute("INSERT INTO usage_rollup (id) VALUES (1)")


def _create_spend() -> None:
    def amounts() -> list[sa.Column[object]]:
        return [
            sa.Column("calls", sa.BigInteger(), nullable=False),
            sa.Column("usd", sa.Numeric(20, 10), nullable=False),
            sa.Column("input_tokens", sa.BigInteger(), nullable=False),
            sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        ]

    op.create_table(
        "spend_days",
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        *amounts(),
        sa.PrimaryKeyConstraint("day", "provider", "model", name=op.f("spend_days_pkey")),
        postgresql_with=OFTEN_UPDATED,
    )
    op.create_table(
        "spend_user_days",
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        *amounts(),
        sa.PrimaryKeyConstraint("user_id", "day", "provider", "model", name=op.f("spend_user_days_pkey")),
        postgresql_with=OFTEN_UPDATED,
    )
    op.create_index("spend_user_days_day_idx", "spend_user_days", ["day"])


def _create_tools() -> None:
    op.create_table(
        "tool_days",
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("bucket", sa.SmallInteger(), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.Column("total_ms", sa.BigInteger(), nullable=False),
        sa.Column("max_ms", sa.BigInteger(), nullable=False),
        sa.Column("slowest_run_id", sa.Uuid(), nullable=True),
        sa.PrimaryKeyConstraint("day", "tool", "source", "bucket", name=op.f("tool_days_pkey")),
        postgresql_with=OFTEN_UPDATED,
    )


def downgrade() -> None:
    for table in ("blob_owners", "tool_days", "spend_user_days", "spend_days", "usage_rollup", "executors"):
        op.drop_table(table)
    op.drop_column("users", "budget_limits")
