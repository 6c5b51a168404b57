"""Add the metadata that clients attach to conversations."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("threads", sa.Column("client_metadata", postgresql.JSONB(), nullable=True))


def downgrade() -> None:
    op.drop_column("threads", "client_metadata")
