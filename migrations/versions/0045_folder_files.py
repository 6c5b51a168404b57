"""Add the files of folders, which all chats in the folder can use."""

import sqlalchemy as sa
from alembic import op

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("LOCK TABLE objects, thread_folders IN ACCESS EXCLUSIVE MODE")
    op.create_table(
        "folder_files",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("media_type", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()")),
        sa.PrimaryKeyConstraint("id", name=op.f("folder_files_pkey")),
        sa.ForeignKeyConstraint(
            ["user_id", "folder"],
            ["thread_folders.subject_id", "thread_folders.name"],
            name=op.f("folder_files_user_id_fkey"),
            onupdate="CASCADE",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(["sha256"], ["objects.sha256"], name=op.f("folder_files_sha256_fkey")),
    )
    op.create_index("folder_files_name_key", "folder_files", ["user_id", "folder", "name"], unique=True)
    op.create_index("folder_files_sha256_idx", "folder_files", ["sha256"])


def downgrade() -> None:
    op.drop_table("folder_files")
