"""Let plans say who has created them, and whose edit has paused them: these people are, or are not, notified."""

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("plans", sa.Column("creator_id", sa.Uuid(), nullable=True))
    op.add_column("plans", sa.Column("edited_by", sa.Uuid(), nullable=True))


def downgrade() -> None:
    op.drop_column("plans", "edited_by")
    op.drop_column("plans", "creator_id")
