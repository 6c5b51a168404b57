"""Allow several runs to answer one message, and store the revision in which each run was requested."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("revision", sa.BigInteger(), server_default="0", nullable=False))
    op.execute("UPDATE runs SET revision = messages.revision FROM messages WHERE messages.id = runs.user_message_id")
    op.drop_index("runs_user_message_id_key", table_name="runs")
    op.create_index("runs_user_message_id_idx", "runs", ["user_message_id", "position"], unique=False)


def downgrade() -> None:
    # Only the first run of each message can stay. The answers of the other runs stay as messages without parts.
    others = """
        SELECT id FROM (
            SELECT id, row_number() OVER (PARTITION BY user_message_id ORDER BY position) AS place FROM runs
        ) AS placed WHERE place > 1
    """
    op.execute(f"UPDATE messages SET status = 'canceled' WHERE status = 'streaming' AND run_id IN ({others})")
    op.execute(f"DELETE FROM message_parts WHERE run_id IN ({others})")
    op.execute(f"DELETE FROM receipts WHERE run_id IN ({others})")
    op.execute(f"DELETE FROM runs WHERE id IN ({others})")
    op.drop_index("runs_user_message_id_idx", table_name="runs")
    op.create_index("runs_user_message_id_key", "runs", ["user_message_id"], unique=True)
    op.drop_column("runs", "revision")
