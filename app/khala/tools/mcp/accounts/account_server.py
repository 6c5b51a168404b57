"""MCP servers to which each account connects its own."""

import msgspec

from khala.store.tools.mcp_accounts import McpAccount
from khala.tools.mcp.accounts.authorization_http import AuthorizationHttp, origin
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
        return account.resource == self.config.url and same_client and allows_issuer(self.config, account.issuer)


def allows_issuer(server: McpServerConfig, issuer: str) -> bool:
    """Whether the operator lets accounts at the server have tokens of this issuer.

    It is the configured one, or else any at the origin of the server. The server alone does not choose another origin:
    an authorization server that somebody else runs could pass requests on to the right one, and read codes and tokens
    (RFC 9728, section 7.6).
    """
    if server.oauth is not None and server.oauth.issuer is not None:
        return server.oauth.issuer.rstrip("/") == issuer.rstrip("/")
    return origin(issuer) == origin(server.url or "")
