"""Pack the parts of runs that ended long ago."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # In the order in which transactions lock these tables: otherwise they deadlock.
    op.add_column("threads", sa.Column("packed_revision", sa.BigInteger(), nullable=True))
    op.add_column("runs", sa.Column("parts_layout", sa.LargeBinary(), nullable=True))
    op.add_column("runs", sa.Column("parts_digest", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    op.drop_column("threads", "packed_revision")
    op.drop_column("runs", "parts_digest")
    op.drop_column("runs", "parts_layout")
