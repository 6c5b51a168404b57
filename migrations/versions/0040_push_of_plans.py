"""Let notifications be about plans, too: they have no run."""

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("push_messages", sa.Column("plan_id", sa.Uuid(), nullable=True))
    op.alter_column("push_messages", "run_id", nullable=True)


def downgrade() -> None:
    op.execute("DELETE FROM push_messages WHERE run_id IS NULL")
    op.alter_column("push_messages", "run_id", nullable=False)
    op.drop_column("push_messages", "plan_id")
