"""Tables of accounts: how users sign in, and the audit trail."""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    LargeBinary,
    Table,
    Text,
    Uuid,
    literal_column,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from khala.store.schema.autovacuum import OFTEN_UPDATED
from khala.store.schema.columns import metadata, required_time_column, time_column, user_id_column


def _prefix_index(name: str, column: str, *others: str) -> Index:
    """An index for searches by the beginning of a text, whatever the case."""
    lowered = literal_column(f"lower({column})", Text).label("lowered")
    return Index(name, lowered, *others, postgresql_ops={"lowered": "text_pattern_ops"})


users = Table(
    "users",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text),
    Column("email", Text),
    # Counts the changes of the user's thread list, as a thread's revision counts those of the thread. A cursor below
    # the floor can't be served with a delta, because entries that it would need were deleted.
    Column("revision", BigInteger, nullable=False, server_default="0"),
    Column("floor_revision", BigInteger, nullable=False, server_default="0"),
    # The revision of the last change of the user's invitations.
    Column("invited_revision", BigInteger, nullable=False, server_default="0"),
    # The user's rules for tool calls: which are allowed without approval.
    Column("tool_rules", JSONB),
    time_column("created_at"),
    # Whether `khala accounts admin` has made the user an administrator.
    Column("admin", Boolean, nullable=False, server_default="false"),
    # When the operator has blocked the account: it has no rights from then on.
    time_column("blocked_at", nullable=True),
    # The name of the plan of budgets that the user's last JWT named, if the settings have a plan of this name.
    Column("budget_plan", Text),
    # Limits that an administrator has set in place of those of the plan: `khala.domain.budgets.BudgetOverride`.
    Column("budget_limits", JSONB(none_as_null=True)),
    # Searches by the beginning of a name or address. No index may have a column that changes often.
    _prefix_index("users_lower_name_idx", "name", "id"),
    _prefix_index("users_lower_email_idx", "email", "id"),
    Index("users_blocked_idx", "id", postgresql_where=text("blocked_at IS NOT NULL")),
    Index("users_admin_idx", "id", postgresql_where=text("admin")),
    postgresql_with={"fillfactor": 70} | OFTEN_UPDATED,
)

# Accounts that are deleted: they have no rights, and the purge deletes what is left of them (`account_removal`).
deleted_accounts = Table(
    "deleted_accounts",
    metadata,
    Column("user_id", Uuid, primary_key=True),
    required_time_column("deleted_at"),
)

passwords = Table(
    "passwords",
    metadata,
    user_id_column(primary_key=True),
    Column("email", Text, nullable=False),
    Column("hash", Text, nullable=False),
    time_column("changed_at"),
    Index("passwords_email_key", "email", unique=True),
)

identities = Table(
    "identities",
    metadata,
    Column("issuer", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    user_id_column(),
    Column("email", Text),
    time_column("created_at"),
    Index("identities_user_id_idx", "user_id"),
    _prefix_index("identities_lower_email_idx", "email", "user_id"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", Uuid, primary_key=True),
    user_id_column(),
    Column("secret_hash", LargeBinary, nullable=False),
    Column("user_agent", Text),
    Column("network", Text),
    # Of a session that began at an OpenID Provider: the token by which it is ended there, too.
    Column("id_token", Text),
    time_column("created_at"),
    time_column("seen_at"),
    required_time_column("expires_at"),
    Index("sessions_secret_hash_key", "secret_hash", unique=True),
    Index("sessions_user_id_idx", "user_id"),
    Index("sessions_expires_at_idx", "expires_at"),
)

api_tokens = Table(
    "api_tokens",
    metadata,
    Column("id", Uuid, primary_key=True),
    user_id_column(),
    Column("name", Text, nullable=False),
    Column("secret_hash", LargeBinary, nullable=False),
    Column("scopes", ARRAY(Text), nullable=False),
    # The agents whose runs a worker's token may execute; null for other tokens.
    Column("agents", ARRAY(Text)),
    time_column("created_at"),
    time_column("used_at", nullable=True),
    time_column("expires_at", nullable=True),
    # Of a service token: the name of the service, and the issuer of the users for whom it may act.
    Column("service", Text),
    Column("user_issuer", Text),
    Index("api_tokens_secret_hash_key", "secret_hash", unique=True),
    Index("api_tokens_user_id_idx", "user_id"),
)

oidc_logins = Table(
    "oidc_logins",
    metadata,
    Column("state_hash", LargeBinary, primary_key=True),
    Column("nonce", Text, nullable=False),
    Column("verifier", Text, nullable=False),
    Column("return_to", Text, nullable=False),
    # The user to whom the identity will be linked; null for a login.
    Column("user_id", Uuid, ForeignKey("users.id", ondelete="CASCADE")),
    required_time_column("expires_at"),
    Index("oidc_logins_user_id_idx", "user_id"),
    Index("oidc_logins_expires_at_idx", "expires_at"),
)

# Programs that have registered as OAuth clients of the MCP server.
oauth_clients = Table(
    "oauth_clients",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("redirect_uris", ARRAY(Text), nullable=False),
    time_column("created_at"),
    # When somebody last allowed it access.
    time_column("used_at", nullable=True),
    Index("oauth_clients_created_at_idx", "created_at"),
)

# The access of OAuth clients to accounts. A row has the hashes of the secrets that are valid now: first a code, then an
# access token, the one before it, and a refresh token. All of them begin with the grant's family.
oauth_grants = Table(
    "oauth_grants",
    metadata,
    Column("id", Uuid, primary_key=True),
    user_id_column(),
    # No foreign key to `oauth_clients`: an id may also be the URL of the client's metadata.
    Column("client_id", Text, nullable=False),
    Column("client_name", Text, nullable=False),
    Column("redirect_uri", Text, nullable=False),
    Column("resource", Text, nullable=False),
    Column("scopes", ARRAY(Text), nullable=False),
    Column("family_hash", LargeBinary, nullable=False),
    Column("challenge", Text, nullable=False),
    Column("code_hash", LargeBinary, nullable=False),
    Column("access_hash", LargeBinary),
    time_column("access_expires_at", nullable=True),
    Column("previous_access_hash", LargeBinary),
    time_column("previous_access_expires_at", nullable=True),
    # Null until the code is exchanged.
    Column("refresh_hash", LargeBinary),
    time_column("created_at"),
    time_column("used_at", nullable=True),
    # Of the code, until it is exchanged; then of the refresh token.
    required_time_column("expires_at"),
    Index("oauth_grants_family_hash_key", "family_hash", unique=True),
    Index("oauth_grants_user_id_idx", "user_id"),
    Index("oauth_grants_client_id_idx", "client_id"),
    Index("oauth_grants_expires_at_idx", "expires_at"),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Uuid, primary_key=True),
    # No foreign key to `users`: the audit trail outlives the account.
    Column("user_id", Uuid),
    Column("action", Text, nullable=False),
    Column("thread_id", Uuid),
    Column("network", Text),
    Column("detail", JSONB, nullable=False),
    time_column("created_at"),
    Index("audit_user_id_idx", "user_id", "id"),
    Index("audit_created_at_idx", "created_at"),
    Index("audit_thread_id_idx", "thread_id", "id", postgresql_where=text("thread_id IS NOT NULL")),
)
