"""Let a thread that expires keep the memories of its owner out."""

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("ephemeral_threads", sa.Column("recalls", sa.Boolean(), nullable=False, server_default="true"))


def downgrade() -> None:
    op.drop_column("ephemeral_threads", "recalls")
