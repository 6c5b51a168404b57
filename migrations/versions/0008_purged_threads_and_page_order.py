"""Mark purged threads."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

INDEXES = (
    "listings_gone_idx",
    "runs_active_fairness_key_idx",
    "runs_active_thread_id_idx",
    "threads_owner_id_created_at_idx",
    "threads_unpurged_idx",
)
"""Indexes of this version. `khala.store.postgres.index_builder` creates them."""


def upgrade() -> None:
    op.add_column("threads", sa.Column("purged_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    for index in INDEXES:
        op.execute(f"DROP INDEX IF EXISTS {index}")
    op.drop_column("threads", "purged_at")
