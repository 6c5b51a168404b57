"""Add accounts of users at MCP servers, connections that have begun, and registrations as an OAuth client."""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

NOW = sa.text("now()")


def _time(name: str, *, nullable: bool = True, has_default: bool = False) -> "sa.Column[object]":
    default = NOW if has_default else None
    return sa.Column(name, sa.DateTime(timezone=True), server_default=default, nullable=nullable)


def _user_key(table: str, ondelete: str) -> sa.ForeignKeyConstraint:
    name = op.f(f"{table}_user_id_fkey")
    return sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=name, ondelete=ondelete)


def upgrade() -> None:
    op.create_table(
        "mcp_accounts",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=True),
        sa.Column("server", sa.Text(), nullable=False),
        sa.Column("resource", sa.Text(), nullable=False),
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("client_id", sa.Text(), nullable=False),
        sa.Column("tokens", sa.LargeBinary(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=True),
        sa.Column("missing_scope", sa.Text(), nullable=True),
        _time("access_expires_at"),
        _time("refused_at"),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        _time("refresh_until"),
        sa.Column("tools", sa.Text(), nullable=True),
        sa.Column("tools_hash", sa.Text(), nullable=True),
        sa.Column("tool_count", sa.Integer(), server_default="0", nullable=False),
        _time("listed_at"),
        _time("created_at", nullable=False, has_default=True),
        _time("used_at"),
        _time("revoke_at"),
        sa.Column("revoke_attempts", sa.Integer(), server_default="0", nullable=False),
        _user_key("mcp_accounts", "SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("mcp_accounts_pkey")),
    )
    op.create_index("mcp_accounts_user_id_server_key", "mcp_accounts", ["user_id", "server"], unique=True)
    op.create_index(
        "mcp_accounts_revoke_at_idx", "mcp_accounts", ["revoke_at"], postgresql_where=sa.text("user_id IS NULL")
    )
    op.create_table(
        "mcp_authorizations",
        sa.Column("state_hash", sa.LargeBinary(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("server", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        _time("expires_at", nullable=False),
        _user_key("mcp_authorizations", "CASCADE"),
        sa.PrimaryKeyConstraint("state_hash", name=op.f("mcp_authorizations_pkey")),
    )
    op.create_index("mcp_authorizations_user_id_server_key", "mcp_authorizations", ["user_id", "server"], unique=True)
    op.create_index("mcp_authorizations_expires_at_idx", "mcp_authorizations", ["expires_at"])
    op.create_table(
        "mcp_clients",
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("redirect_uri", sa.Text(), nullable=False),
        sa.Column("client", sa.LargeBinary(), nullable=False),
        _time("created_at", nullable=False, has_default=True),
        _time("expires_at"),
        sa.PrimaryKeyConstraint("issuer", "redirect_uri", name=op.f("mcp_clients_pkey")),
    )


def downgrade() -> None:
    for table in ("mcp_clients", "mcp_authorizations", "mcp_accounts"):
        op.drop_table(table)
