"""Composes the connected services of a process."""

from collections.abc import Sequence

from khala.domain.secret_box import SecretBox
from khala.store.postgres.database import Database
from khala.tools.mcp import tool_names
from khala.tools.mcp.accounts.account_connector import AccountConnector
from khala.tools.mcp.accounts.account_server import AccountServer
from khala.tools.mcp.accounts.account_servers import AccountServers
from khala.tools.mcp.accounts.account_sessions import AccountSessions
from khala.tools.mcp.accounts.account_tools import AccountTools
from khala.tools.mcp.accounts.authorization_http import AuthorizationHttp
from khala.tools.mcp.accounts.revocations import TokenRevoker
from khala.tools.mcp.config import McpConfig
from khala.tools.ssrf_guard import IPNetwork


def open_account_servers(
    config: McpConfig, db: Database, box: SecretBox, *, allow: Sequence[IPNetwork], public_url: str | None
) -> AccountServers:
    """The servers of the configuration to which accounts connect their own.

    `allow`: networks beside the public internet in which authorization servers may be. `public_url`: the address of
    this server, if the operator has set it.
    """
    prefixes = tool_names.prefixes(config.servers)
    servers = {
        name: AccountServer(config=one, http=AuthorizationHttp(one, allow=allow), prefix=prefixes[name])
        for name, one in config.servers.items()
        if one.is_per_account
    }
    sessions = AccountSessions(db, box)
    return AccountServers(
        db,
        servers,
        connector=AccountConnector(db, box, public_url),
        sessions=sessions,
        tools=AccountTools(db, servers, sessions, public_url),
        revoker=TokenRevoker(db, box, servers),
    )
