"""Tables of connected services: the accounts of users at MCP servers, and Khala's own registrations there.

Secrets are sealed by `khala.domain.secret_box`, with keys that the database does not have.
"""

from sqlalchemy import Column, ForeignKey, Index, Integer, LargeBinary, Table, Text, Uuid, text

from khala.store.schema.columns import metadata, required_time_column, time_column, user_id_column

mcp_accounts = Table(
    "mcp_accounts",
    metadata,
    Column("id", Uuid, primary_key=True),
    # Null: the row belongs to nobody any more, and its tokens are to be revoked.
    Column("user_id", Uuid, ForeignKey("users.id", ondelete="SET NULL")),
    # The name of the server in the operator's configuration, and its address when it was connected.
    Column("server", Text, nullable=False),
    Column("resource", Text, nullable=False),
    Column("issuer", Text, nullable=False),
    Column("client_id", Text, nullable=False),
    Column("tokens", LargeBinary, nullable=False),
    Column("scope", Text),
    # Scopes that a call required in vain, with those of the account.
    Column("missing_scope", Text),
    # The end of the access token, if its issuer names it.
    time_column("access_expires_at", nullable=True),
    # Since when no token is accepted: the user has to connect the account again.
    time_column("refused_at", nullable=True),
    # Counts refreshes. `refresh_until`: the lease of the process that refreshes now.
    Column("version", Integer, nullable=False, server_default="1"),
    time_column("refresh_until", nullable=True),
    # What the server lists for this account, as JSON in its own order.
    Column("tools", Text),
    Column("tools_hash", Text),
    Column("tool_count", Integer, nullable=False, server_default="0"),
    time_column("listed_at", nullable=True),
    time_column("created_at"),
    time_column("used_at", nullable=True),
    # The next attempt to revoke the tokens, and the number of attempts.
    time_column("revoke_at", nullable=True),
    Column("revoke_attempts", Integer, nullable=False, server_default="0"),
    Index("mcp_accounts_user_id_server_key", "user_id", "server", unique=True),
    Index("mcp_accounts_revoke_at_idx", "revoke_at", postgresql_where=text("user_id IS NULL")),
)

# Connections that have begun, until the browser returns.
mcp_authorizations = Table(
    "mcp_authorizations",
    metadata,
    Column("state_hash", LargeBinary, primary_key=True),
    user_id_column(),
    Column("server", Text, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    required_time_column("expires_at"),
    Index("mcp_authorizations_user_id_server_key", "user_id", "server", unique=True),
    Index("mcp_authorizations_expires_at_idx", "expires_at"),
)

# Khala as a client that has registered itself at an issuer (RFC 7591), for all accounts.
mcp_clients = Table(
    "mcp_clients",
    metadata,
    Column("issuer", Text, primary_key=True),
    Column("redirect_uri", Text, primary_key=True),
    Column("client", LargeBinary, nullable=False),
    time_column("created_at"),
    time_column("expires_at", nullable=True),
)
