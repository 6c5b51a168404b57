"""Add OAuth clients of the MCP server, and their access to accounts."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

GRANT_INDEXES = {
    "oauth_grants_family_hash_key": ("family_hash", True),
    "oauth_grants_user_id_idx": ("user_id", False),
    "oauth_grants_client_id_idx": ("client_id", False),
    "oauth_grants_expires_at_idx": ("expires_at", False),
}


def upgrade() -> None:
    op.create_table(
        "oauth_clients",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("redirect_uris", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("oauth_clients_pkey")),
    )
    op.create_index("oauth_clients_created_at_idx", "oauth_clients", ["created_at"])
    op.create_table(
        "oauth_grants",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("client_id", sa.Text(), nullable=False),
        sa.Column("client_name", sa.Text(), nullable=False),
        sa.Column("redirect_uri", sa.Text(), nullable=False),
        sa.Column("resource", sa.Text(), nullable=False),
        sa.Column("scopes", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("family_hash", sa.LargeBinary(), nullable=False),
        sa.Column("challenge", sa.Text(), nullable=False),
        sa.Column("code_hash", sa.LargeBinary(), nullable=False),
        sa.Column("access_hash", sa.LargeBinary(), nullable=True),
        sa.Column("access_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("previous_access_hash", sa.LargeBinary(), nullable=True),
        sa.Column("previous_access_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("refresh_hash", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("oauth_grants_user_id_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("oauth_grants_pkey")),
    )
    for name, (column, unique) in GRANT_INDEXES.items():
        op.create_index(name, "oauth_grants", [column], unique=unique)


def downgrade() -> None:
    op.drop_table("oauth_grants")
    op.drop_table("oauth_clients")
