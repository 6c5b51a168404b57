"""The apps that have access to an account, over REST."""

from typing import Annotated
from uuid import UUID

from litestar import Controller, delete, get
from litestar.di import NamedDependency
from litestar.params import PathParameter

from khala.api.accounts.authentication import BY_ACCOUNT, require_user
from khala.api.context import Context
from khala.api.http.problem_details import documented_errors
from khala.api.types import Items
from khala.domain.access import Caller
from khala.domain.oauth import ClientGrant
from khala.store.accounts import oauth_grants

DENIED = ("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable")

GrantId = Annotated[UUID, PathParameter(description="The grant's id, as in the list of grants.")]


class GrantController(Controller):
    """Access of MCP clients to the account."""

    path = "/grants"
    tags = ("Accounts",)
    security = BY_ACCOUNT
    opt = {"scope": "account"}  # noqa: RUF012  # Litestar's own declaration

    @get(
        "/",
        operation_id="listGrants",
        summary="List apps with access",
        response_description="The grants, the newest first.",
        responses=documented_errors(*DENIED),
    )
    async def page(self, context: NamedDependency[Context], caller: NamedDependency[Caller]) -> Items[ClientGrant]:
        """List the MCP clients that may use the account's tools, because the user has allowed them to."""
        async with context.db.driver() as driver:
            return Items(items=await oauth_grants.of_user(driver, require_user(caller)))

    @delete(
        "/{grant_id:uuid}",
        operation_id="revokeGrant",
        summary="End the access of an app",
        response_description="The access has ended.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def revoke(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], grant_id: GrantId
    ) -> None:
        """End the access of an MCP client, with all its tokens. It has to ask again."""
        require_user(caller)
        await oauth_grants.revoke(context.db, grant_id, caller)
