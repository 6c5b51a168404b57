"""Divide the windows of budgets that all sends share into stripes.

The version before this one counts the shares of the stripes as reserved, so no limit is exceeded during an upgrade.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

PARAMETERS = {
    "fillfactor": "70",
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_threshold": "200",
    "autovacuum_analyze_scale_factor": "0.02",
}
WINDOW = ["scope", "key", "measure", "starts_at"]


def upgrade() -> None:
    op.create_table(
        "budget_stripes",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("measure", sa.Text(), nullable=False),
        sa.Column("starts_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("reserved", sa.Numeric(20, 10), server_default="0", nullable=False),
        sa.Column("settled", sa.Numeric(20, 10), server_default="0", nullable=False),
        sa.Column("most", sa.Numeric(20, 10), nullable=False),
        sa.ForeignKeyConstraint(
            WINDOW, [f"budgets.{column}" for column in WINDOW], name="budget_stripes_window_fkey", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint(*WINDOW, "number", name=op.f("budget_stripes_pkey")),
        postgresql_with=PARAMETERS,
    )


def downgrade() -> None:
    op.execute("""
        WITH held AS MATERIALIZED (
            SELECT scope, key, measure, starts_at FROM budgets
            ORDER BY scope, key, measure, starts_at FOR NO KEY UPDATE
        )
        UPDATE budgets SET reserved = budgets.reserved + stripes.reserved, settled = budgets.settled + stripes.settled
        FROM (
            SELECT scope, key, measure, starts_at, sum(reserved) AS reserved, sum(settled) AS settled
            FROM held JOIN budget_stripes USING (scope, key, measure, starts_at)
            GROUP BY scope, key, measure, starts_at
        ) AS stripes
        WHERE (budgets.scope, budgets.key, budgets.measure, budgets.starts_at)
            = (stripes.scope, stripes.key, stripes.measure, stripes.starts_at)
    """)
    op.drop_table("budget_stripes")
