"""Add the network whose budget the steps of a guest's plan use."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("plans", sa.Column("network", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("plans", "network")
