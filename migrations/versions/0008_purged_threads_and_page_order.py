"""Mark purged threads, and index what is purged in batches and listed in pages."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

ACTIVE = sa.text("status IN ('queued', 'running', 'blocked')")


def upgrade() -> None:
    op.add_column("threads", sa.Column("purged_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "threads_unpurged_idx",
        "threads",
        ["deleted_at"],
        postgresql_where=sa.text("deleted_at IS NOT NULL AND purged_at IS NULL"),
        if_not_exists=True,
    )
    op.create_index(
        "threads_owner_id_created_at_idx",
        "threads",
        ["owner_id", "created_at", "id"],
        postgresql_where=sa.text("deleted_at IS NULL"),
        if_not_exists=True,
    )
    op.create_index(
        "runs_active_thread_id_idx", "runs", ["thread_id", "position"], postgresql_where=ACTIVE, if_not_exists=True
    )
    op.create_index(
        "runs_active_fairness_key_idx", "runs", ["fairness_key"], postgresql_where=ACTIVE, if_not_exists=True
    )
    op.create_index(
        "listings_gone_idx", "listings", ["changed_at"], postgresql_where=sa.text("gone"), if_not_exists=True
    )


def downgrade() -> None:
    op.drop_index("listings_gone_idx", table_name="listings")
    op.drop_index("runs_active_fairness_key_idx", table_name="runs")
    op.drop_index("runs_active_thread_id_idx", table_name="runs")
    op.drop_index("threads_owner_id_created_at_idx", table_name="threads")
    op.drop_index("threads_unpurged_idx", table_name="threads")
    op.drop_column("threads", "purged_at")
