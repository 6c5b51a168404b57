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
    """Secrets by which programs act for an account."""

    path = "/tokens"
    tags = ("Accounts",)
    security = BY_ACCOUNT
    opt = {"scope": "account"}  # noqa: RUF012  # as the framework has it

    @post(
        "/",
        operation_id="makeToken",
        summary="Make an API token",
        response_description="The token, which is told only now.",
        responses=documented_errors(*DENIED, "conflict", "payload_too_large", "unsupported_media_type"),
    )
    async def make(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        data: Annotated[
            NewToken, BodyKwarg(examples=[Example(summary="To read", value={"name": "CI", "scopes": ["read"]})])
        ],
    ) -> CreatedToken:
        """Make a secret that acts for the account within its scopes: never more than the caller's own."""
        require_user(caller)
        if len(set(data.scopes)) < len(data.scopes):
            raise InvalidInput("Each scope may be named once.", path="scopes")
        if not set(data.scopes) <= caller.scopes:
            raise Forbidden("A token can't give away more than it has itself.")
        scopes = [scope for scope in SCOPES if scope in data.scopes]
        name, expires_at = check_text(data.name, "name"), check_expiry(data.expires_at)
        token, secret = await api_tokens.create(context.db, caller, name, scopes, expires_at)
        return CreatedToken(**msgspec.structs.asdict(token), token=secret)

    @get(
        "/",
        operation_id="listTokens",
        summary="List API tokens",
        response_description="Tokens, the newest first, without their secrets.",
        responses=documented_errors(*DENIED),
    )
    async def page(self, context: NamedDependency[Context], caller: NamedDependency[Caller]) -> Items[ApiToken]:
        """The account's tokens."""
        async with context.db.driver() as driver:
            return Items(items=await api_tokens.of_user(driver, require_user(caller)))

    @delete(
        "/{token_id:uuid}",
        operation_id="revokeToken",
        summary="Revoke an API token",
        response_description="It is good for nothing any more.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def revoke(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], token_id: TokenId
    ) -> None:
        """End a token; sockets that were opened by it are cut off."""
        require_user(caller)
        await api_tokens.revoke(context.db, token_id, caller)
