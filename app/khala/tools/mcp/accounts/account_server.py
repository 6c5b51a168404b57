"""MCP servers to which each account connects its own."""

import msgspec

from khala.store.tools.mcp_accounts import McpAccount
from khala.tools.mcp.accounts.authorization_http import AuthorizationHttp
from khala.tools.mcp.config import McpServerConfig


class AccountServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server to which each account connects its own. `prefix` is that of its tools' names."""

    config: McpServerConfig
    http: AuthorizationHttp
    prefix: str

    def accepts(self, account: McpAccount | None) -> bool:
        """Whether this account is connected to the server, as the server is configured now."""
        oauth = self.config.oauth
        if account is None or oauth is None or account.refused_at is not None:
            return False
        same_client = oauth.client_id in (None, account.client_id)
        same_issuer = oauth.issuer is None or oauth.issuer.rstrip("/") == account.issuer.rstrip("/")
        return account.resource == self.config.url and same_client and same_issuer
