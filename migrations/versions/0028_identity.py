"""Add service tokens, thread tokens, admins, blocked accounts and budget plans."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("LOCK TABLE users, api_tokens, share_links IN ACCESS EXCLUSIVE MODE")
    op.add_column("users", sa.Column("admin", sa.Boolean(), server_default="false", nullable=False))
    op.add_column("users", sa.Column("blocked_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("users", sa.Column("budget_plan", sa.Text(), nullable=True))
    op.add_column("api_tokens", sa.Column("service", sa.Text(), nullable=True))
    op.add_column("api_tokens", sa.Column("user_issuer", sa.Text(), nullable=True))
    op.add_column("share_links", sa.Column("kind", sa.Text(), server_default="link", nullable=False))


def downgrade() -> None:
    op.drop_column("share_links", "kind")
    for column in ("user_issuer", "service"):
        op.drop_column("api_tokens", column)
    for column in ("budget_plan", "blocked_at", "admin"):
        op.drop_column("users", column)
