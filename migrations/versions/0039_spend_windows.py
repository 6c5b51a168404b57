"""Add the spend of the last days by user, which the console lists in order."""

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

OFTEN_UPDATED = {
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_threshold": "200",
    "autovacuum_analyze_scale_factor": "0.02",
}


def upgrade() -> None:
    op.create_table(
        "spend_windows",
        sa.Column("days", sa.SmallInteger(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("usd", sa.Numeric(20, 10), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("days", "user_id", name=op.f("spend_windows_pkey")),
        postgresql_with=OFTEN_UPDATED,
    )
    op.create_index("spend_windows_days_usd_idx", "spend_windows", ["days", sa.text("usd DESC"), "user_id"])
    # The background task fills the windows with its first step.
    op.add_column("usage_rollup", sa.Column("windows_day", sa.Date(), nullable=True))
    op.add_column("usage_rollup", sa.Column("windows_until", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("usage_rollup", "windows_until")
    op.drop_column("usage_rollup", "windows_day")
    op.drop_table("spend_windows")
