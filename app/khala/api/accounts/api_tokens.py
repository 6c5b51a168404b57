"""API tokens over REST."""

from typing import Annotated

import msgspec
from litestar import Controller, delete, get, post
from litestar.di import NamedDependency
from litestar.openapi.spec import Example
from litestar.params import BodyKwarg

from khala.api.accounts.authentication import BY_ACCOUNT, require_user
from khala.api.accounts.types import CreatedToken, NewToken
from khala.api.context import Context
from khala.api.http.path_parameters import TokenId
from khala.api.http.problem_details import documented_errors
from khala.api.types import Items
from khala.api.validation import check_expiry, check_text
from khala.domain.access import SCOPES, Caller
from khala.domain.accounts import ApiToken
from khala.domain.errors import Forbidden, InvalidInput
from khala.store.accounts import api_tokens

DENIED = ("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable")


class ApiTokenController(Controller):
    """Secrets with which programs act for an account."""

    path = "/tokens"
    tags = ("Accounts",)
    security = BY_ACCOUNT
    opt = {"scope": "account"}  # noqa: RUF012  # Litestar's own declaration

    @post(
        "/",
        operation_id="createToken",
        summary="Create an API token",
        response_description="The token and its secret, which is returned only once.",
        responses=documented_errors(*DENIED, "conflict", "payload_too_large", "unsupported_media_type"),
    )
    async def create(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        data: Annotated[
            NewToken,
            BodyKwarg(
                examples=[Example(summary="A token that can only read", value={"name": "CI", "scopes": ["read"]})]
            ),
        ],
    ) -> CreatedToken:
        """Create a secret that acts for the account within its scopes. They cannot exceed the caller's own."""
        require_user(caller)
        if len(set(data.scopes)) < len(data.scopes):
            raise InvalidInput("Name each scope only once.", path="scopes")
        if not set(data.scopes) <= caller.scopes:
            raise Forbidden("A token can't create a token with more scopes than its own.")
        _check_worker(data)
        scopes = [scope for scope in SCOPES if scope in data.scopes]
        name, expires_at = check_text(data.name, "name"), check_expiry(data.expires_at)
        token, secret = await api_tokens.create(context.db, caller, name, scopes, expires_at, data.agents)
        return CreatedToken(**msgspec.structs.asdict(token), token=secret)

    @get(
        "/",
        operation_id="listTokens",
        summary="List API tokens",
        response_description="Tokens, the newest first, without their secrets.",
        responses=documented_errors(*DENIED),
    )
    async def page(self, context: NamedDependency[Context], caller: NamedDependency[Caller]) -> Items[ApiToken]:
        """List the account's tokens."""
        async with context.db.driver() as driver:
            return Items(items=await api_tokens.of_user(driver, require_user(caller)))

    @delete(
        "/{token_id:uuid}",
        operation_id="revokeToken",
        summary="Revoke an API token",
        response_description="The token was revoked.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def revoke(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], token_id: TokenId
    ) -> None:
        """Revoke a token, and close the sockets that it opened."""
        require_user(caller)
        await api_tokens.revoke(context.db, token_id, caller)


def _check_worker(data: NewToken) -> None:
    """Raise `InvalidInput` unless the scope `execute` stands alone and names agents, and no other scope does."""
    if "execute" in data.scopes and len(data.scopes) > 1:
        raise InvalidInput("A worker's token has the scope execute alone.", path="scopes")
    if ("execute" in data.scopes) != bool(data.agents):
        raise InvalidInput("A token with the scope execute, and no other, names agents.", path="agents")
    if len(set(data.agents)) < len(data.agents):
        raise InvalidInput("Name each agent only once.", path="agents")
