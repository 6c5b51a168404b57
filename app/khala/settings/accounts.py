"""Settings of accounts: registration, sign-in by an OpenID Provider, and how long anonymous threads stay."""

from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from pydantic import model_validator

from khala.settings.fields import Number, SecretKeys, SettingGroup, TextValue, WebUrl, Words, setting

if TYPE_CHECKING:
    from khala.identity.oidc import OidcSettings


class AccountSettings(SettingGroup):
    """Accounts, and users without one."""

    registration: Literal["open", "closed"] = setting(
        "KHALA_REGISTRATION", "open", "Whether people may register accounts by themselves."
    )
    anon_days: Number = setting(
        "KHALA_ANON_DAYS",
        7.0,
        "An anonymous thread that was neither used nor claimed for this time expires; 0 for never.",
        unit="days",
        minimum=0,
        maximum=3650,
    )
    oidc_issuer: WebUrl | None = setting(
        "KHALA_OIDC_ISSUER",
        None,
        "The issuer of an OpenID Provider to sign in with. Its JWTs are accepted as bearer tokens, too. The callback "
        "is `/api/auth/oidc/callback`.",
    )
    oidc_client_id: TextValue | None = setting(
        "KHALA_OIDC_CLIENT_ID", None, "The client's id at the provider; required with an issuer."
    )
    oidc_client_secret: TextValue | None = setting(
        "KHALA_OIDC_CLIENT_SECRET", None, "The client's secret; none for a public client.", secret=True
    )
    oidc_name: TextValue | None = setting(
        "KHALA_OIDC_NAME", None, "The provider's name on the sign-in button.", shown_default="the issuer's host"
    )
    oidc_scopes: TextValue = setting("KHALA_OIDC_SCOPES", "openid email profile", "The scopes to request.")
    oidc_audience: TextValue | None = setting(
        "KHALA_OIDC_AUDIENCE", None, "The audience that bearer JWTs must have.", shown_default="the client's id"
    )

    mcp_oauth: Literal["optional", "required", "off"] = setting(
        "KHALA_MCP_OAUTH",
        "optional",
        "Whether MCP clients may get access by OAuth ([MCP](mcp.md#oauth)). With `optional`, clients without a token "
        "are still offered the tools of guests, as a list; with `required`, they have to get a token first.",
    )
    mcp_authorization_server: WebUrl | None = setting(
        "KHALA_MCP_AUTHORIZATION_SERVER",
        None,
        "The issuer of an OpenID Provider that issues the tokens of MCP clients, in place of Khala. Needs "
        "`KHALA_PUBLIC_URL`.",
        shown_default="Khala itself",
    )
    secret_keys: SecretKeys = setting(
        "KHALA_SECRET_KEYS",
        (),
        "Keys of 32 bytes in base64 that encrypt the tokens of connected services ([MCP](mcp.md#accounts-of-people)). "
        "The first one encrypts, all of them decrypt.",
        secret=True,
    )
    jwt: TextValue | None = setting(
        "KHALA_JWT",
        None,
        "A TOML or JSON file, or the JSON itself, with the issuers of your users' JWTs and with plans of budgets "
        "([your users](how-to/your-users.md)).",
    )
    admins: Words = setting(
        "KHALA_ADMINS",
        (),
        "Administrators: ids of accounts, and e-mail addresses that an identity provider has verified.",
    )

    @model_validator(mode="after")
    def _check_client(self) -> "AccountSettings":
        if self.oidc_issuer and not self.oidc_client_id:
            raise ValueError("KHALA_OIDC_ISSUER needs KHALA_OIDC_CLIENT_ID: set that, too.")
        return self

    @property
    def oidc(self) -> "OidcSettings | None":
        """The OpenID Provider, if there is one."""
        if self.oidc_issuer is None:
            return None
        from khala.identity.oidc import OidcSettings

        return OidcSettings(
            issuer=self.oidc_issuer,
            client_id=self.oidc_client_id or "",
            client_secret=self.oidc_client_secret,
            scopes=self.oidc_scopes,
            audience=self.oidc_audience,
            name=self.oidc_name or urlsplit(self.oidc_issuer).netloc,
        )
