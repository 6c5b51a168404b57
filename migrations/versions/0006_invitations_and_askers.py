"""Add invitations, the key of a run's requester, the author of tool rules, and approvals for the requester only."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "invitations",
        sa.Column("thread_id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("invited_by", sa.Uuid(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("declined_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("role IN ('viewer', 'editor', 'owner')", name=op.f("invitations_role_check")),
        sa.ForeignKeyConstraint(
            ["thread_id"], ["threads.id"], name=op.f("invitations_thread_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("invitations_user_id_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("thread_id", "user_id", name=op.f("invitations_pkey")),
    )
    op.create_index("invitations_user_id_idx", "invitations", ["user_id"], unique=False)
    op.create_index(
        "invitations_declined_at_idx",
        "invitations",
        ["declined_at"],
        unique=False,
        postgresql_where=sa.text("declined_at IS NOT NULL"),
    )
    op.add_column("users", sa.Column("invited_revision", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("runs", sa.Column("asker_key_id", sa.Uuid(), nullable=True))
    op.add_column("threads", sa.Column("tool_rules_by", sa.Uuid(), nullable=True))
    op.add_column("approvals", sa.Column("asker_only", sa.Boolean(), server_default="false", nullable=False))


def downgrade() -> None:
    op.drop_column("approvals", "asker_only")
    op.drop_column("threads", "tool_rules_by")
    op.drop_column("runs", "asker_key_id")
    op.drop_column("users", "invited_revision")
    op.drop_table("invitations")
