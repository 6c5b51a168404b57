"""Add the bytes that are reserved for each stream, of the limit over all streams of an account."""

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Streams that exist get a reservation with their next append: what they have stored counts in any case.
    op.add_column("streams", sa.Column("reserved_bytes", sa.BigInteger(), server_default="0", nullable=False))


def downgrade() -> None:
    op.drop_column("streams", "reserved_bytes")
