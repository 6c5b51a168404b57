"""Add remote agents, the claims of their runs by workers, and the agents of a worker's token."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("LOCK TABLE runs, agents, api_tokens IN ACCESS EXCLUSIVE MODE")
    op.add_column("agents", sa.Column("executor", sa.Text(), nullable=False, server_default="server"))
    op.add_column("api_tokens", sa.Column("agents", postgresql.ARRAY(sa.Text()), nullable=True))
    op.add_column("runs", sa.Column("remote_owner_id", sa.Uuid(), nullable=True))
    op.add_column("runs", sa.Column("remote_claim", sa.Text(), nullable=True))
    op.add_column("runs", sa.Column("remote_request", sa.Uuid(), nullable=True))
    op.add_column("runs", sa.Column("remote_deadline", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    for column in ("remote_deadline", "remote_request", "remote_claim", "remote_owner_id"):
        op.drop_column("runs", column)
    op.drop_column("api_tokens", "agents")
    op.drop_column("agents", "executor")
