"""Add the search of the texts in blobs: signatures of their words, and the messages that they belong to."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("blobs", sa.Column("signature", sa.LargeBinary(), nullable=True))
    op.add_column("blobs", sa.Column("message_id", sa.Uuid(), nullable=True))
    # Not compressed, so that a search reads single bytes of a long signature.
    op.execute("ALTER TABLE blobs ALTER COLUMN signature SET STORAGE EXTERNAL")


def downgrade() -> None:
    op.drop_column("blobs", "message_id")
    op.drop_column("blobs", "signature")
