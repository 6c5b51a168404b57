"""Add the settings of folders: a person's instructions and agent for the threads in a folder of theirs."""

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "thread_folders",
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("anon_key_hash", sa.LargeBinary(), nullable=True),
        sa.Column("instructions", sa.Text(), nullable=True),
        sa.Column("agent", sa.Text(), nullable=True),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()")),
        sa.PrimaryKeyConstraint("subject_id", "name", name=op.f("thread_folders_pkey")),
    )
    key = sa.text("anon_key_hash IS NOT NULL")
    op.create_index("thread_folders_changed_at_idx", "thread_folders", ["changed_at"], postgresql_where=key)


def downgrade() -> None:
    op.drop_table("thread_folders")
