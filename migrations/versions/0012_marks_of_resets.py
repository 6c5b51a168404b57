"""Add the marks of resets: what a reset has deleted, until it is purged."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "thread_resets",
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("first_position", sa.Integer(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("reset_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("thread_id", name=op.f("thread_resets_pkey")),
    )


def downgrade() -> None:
    # Without the marks, the rows would be visible again.
    runs = "SELECT id FROM runs JOIN thread_resets USING (thread_id) WHERE position < first_position"
    op.execute(f"CREATE TEMPORARY TABLE marked_runs ON COMMIT DROP AS {runs}")
    for table, column in (
        ("receipts", "run_id"),
        ("detail_tokens", "run_id"),
        ("message_parts", "run_id"),
        ("runs", "id"),
    ):
        op.execute(f"DELETE FROM {table} WHERE {column} IN (SELECT id FROM marked_runs)")
    for table, condition in (("messages", "position < first_position"), ("blobs", "created_at < reset_at")):
        op.execute(
            f"DELETE FROM {table} AS entry USING thread_resets AS mark WHERE entry.thread_id = mark.thread_id AND {condition}"
        )
    op.drop_table("thread_resets")
