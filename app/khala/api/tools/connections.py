"""Connected services over REST: the caller's accounts at MCP servers, and the browser's way there and back."""

from typing import Annotated, Any
from urllib.parse import urlencode

import structlog
from litestar import Controller, Request, delete, get, post
from litestar.di import NamedDependency
from litestar.params import BodyKwarg, PathParameter, QueryParameter
from litestar.response import Redirect
from msgspec import Meta

from khala.api.accounts.authentication import BY_ACCOUNT, RETURNS_FROM_PROVIDER, require_user
from khala.api.context import Context
from khala.api.http.local_path import MAX_PATH_CHARACTERS, local_path
from khala.api.http.problem_details import documented_errors
from khala.api.http.rate_limits import COST
from khala.api.http.request_origin import base_url, refuse_cross_site
from khala.api.openapi.document import OptionalBody, example
from khala.api.types import ApiStruct, Items
from khala.domain.access import Caller
from khala.domain.errors import Forbidden, InvalidInput, KhalaError, NotFound
from khala.store.tools import mcp_accounts
from khala.tools.mcp.accounts.account_servers import connections
from khala.tools.mcp.accounts.authorization_http import ConnectError
from khala.tools.mcp.accounts.client_metadata import client_document, document_url
from khala.tools.mcp.accounts.connection_results import (
    AccountConnection,
    AuthorizationResult,
    DeniedError,
    ExpiredError,
)

log = structlog.get_logger()

DENIED = ("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type")
EXAMPLE = "https://github.com/login/oauth/authorize?response_type=code&client_id=…"

BEGIN_COST = 5.0
"""The cost of a request that makes up to ten others, which find the service's authorization server."""

ServiceName = Annotated[str, PathParameter(description="The service's name, as in the list.", max_length=64)]
Text = Annotated[str | None, QueryParameter(max_length=8192)]
Connection = Request[Any, Any, Any]


class NewConnection(ApiStruct, frozen=True, kw_only=True):
    """`returnTo`: the path on this server to which the browser comes back."""

    return_to: Annotated[str, Meta(min_length=1, max_length=MAX_PATH_CHARACTERS)] = "/"


class ConnectionStart(ApiStruct, frozen=True, kw_only=True):
    """The address at the service's authorization server at which the person allows the access. Open it in a browser."""

    url: str


class ConnectionController(Controller):
    """The caller's accounts at services."""

    path = "/connections"
    tags = ("Tools",)

    @get(
        "/",
        operation_id="listConnections",
        summary="List connected services",
        opt={"scope": "account"},
        security=BY_ACCOUNT,
        response_description="All services, with the state of the caller's account.",
        responses=documented_errors(*DENIED),
    )
    async def page(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller]
    ) -> Items[AccountConnection]:
        """List the services to which accounts connect their own. Tokens are not included."""
        user_id, servers = require_user(caller), context.tools.account_servers
        if servers is None:
            # There may be accounts at servers that the operator has removed.
            return Items(items=await connections(context.db, {}, user_id))
        return Items(items=await servers.connections(user_id))

    @post(
        "/{name:str}",
        operation_id="connectService",
        operation_class=OptionalBody,
        summary="Start to connect a service",
        opt={"scope": "account", COST: BEGIN_COST},
        security=BY_ACCOUNT,
        status_code=200,
        response_description="The address to open.",
        responses=documented_errors(*DENIED, *BODY, "not_found"),
    )
    async def begin(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        request: Connection,
        name: ServiceName,
        data: Annotated[
            NewConnection | None,
            BodyKwarg(examples=example("Back to a chat", returnTo="/t/01990000-0000-7000-8000-000000000000")),
        ] = None,
    ) -> ConnectionStart:
        """Start to connect the caller's account.

        Within ten minutes, a browser in which the same account is signed in has to allow the access at the address.
        """
        return ConnectionStart(url=await _begin(context, caller, request, name, (data or NewConnection()).return_to))

    # For links in questions of runs.
    @get("/{name:str}/start", include_in_schema=False, opt={"scope": "account", COST: BEGIN_COST}, status_code=302)
    async def start(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        request: Connection,
        name: ServiceName,
    ) -> Redirect:
        """Start to connect the caller's account, and go to the service. A page of another site may not do this."""
        refuse_cross_site(request, context.origins, cookie=True)
        try:
            return Redirect(await _begin(context, caller, request, name, "/"), status_code=302)
        except KhalaError as error:
            log.info("mcp_account_not_connected", server=name, code=error.code, detail=error.message)
            return Redirect(_result("/", error.code, name), status_code=302)

    # Lenient, because authorization servers add parameters of their own.
    @get(
        "/{name:str}/callback",
        include_in_schema=False,
        status_code=302,
        opt={RETURNS_FROM_PROVIDER: True},
        lenient=True,
    )
    async def callback(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        request: Connection,
        name: ServiceName,
        returned_state: Annotated[str | None, QueryParameter(name="state", max_length=4096)] = None,
        code: Text = None,
        iss: Text = None,
        error: Text = None,
    ) -> Redirect:
        """Complete a connection, and go back to where it started. The page shows the outcome.

        It takes a session of a browser: a credential in a header completes nothing.
        """
        servers, return_to, service = context.tools.account_servers, "/", None
        try:
            user_id = require_user(caller)
            if "authorization" in request.headers:
                raise Forbidden("A connection is completed in the browser.")
            if servers is None or returned_state is None:
                raise InvalidInput("There is nothing to complete.")
            pending = await servers.take(user_id, returned_state)
            return_to, service = pending.return_to, pending.server
            if name != pending.server:
                raise ConnectError("The answer comes from the authorization server of another service.")
            result = AuthorizationResult(state=returned_state, code=code, issuer=iss, error=error)
            await servers.finish(caller, pending, result)
        except (KhalaError, ConnectError) as problem:
            outcome = _outcome(problem)
            log.info("mcp_account_not_connected", server=service, code=outcome, detail=str(problem))
            return Redirect(_result(return_to, outcome, service), status_code=302)
        return Redirect(_result(return_to, "connected", service), status_code=302)

    @delete(
        "/{name:str}",
        operation_id="disconnectService",
        summary="Disconnect a service",
        opt={"scope": "account"},
        security=BY_ACCOUNT,
        response_description="The account is disconnected.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def disconnect(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], name: ServiceName
    ) -> None:
        """Disconnect the caller's account. Its tokens are no longer used, and are revoked at the service."""
        require_user(caller)
        if context.tools.account_servers is None:
            await mcp_accounts.disconnect(context.db, caller, name)
        else:
            await context.tools.account_servers.disconnect(caller, name)

    @get("/client-metadata", include_in_schema=False)
    async def client_metadata(self, context: NamedDependency[Context]) -> dict[str, Any]:
        """Khala's client id metadata document. Without a public https address there is none."""
        public_url = context.origins.public_url
        servers = context.tools.account_servers
        if servers is None or public_url is None or document_url(public_url) is None:
            raise NotFound("This server has no client metadata.")
        return client_document(public_url, servers.names)


async def _begin(context: Context, caller: Caller, request: Connection, name: str, return_to: str) -> str:
    require_user(caller)
    if context.tools.account_servers is None:
        raise NotFound("There is no such service.")
    address = base_url(request, context.origins)
    return await context.tools.account_servers.begin(caller, name, address, local_path(return_to))


def _outcome(problem: Exception) -> str:
    """The code of a failure, for the page."""
    match problem:
        case DeniedError():
            return "denied"
        case ExpiredError():
            return "expired"
        case KhalaError():
            return problem.code
        case _:
            return "failed"


def _result(path: str, outcome: str, name: str | None) -> str:
    """The path with the outcome as parameters."""
    before, mark, fragment = path.partition("#")
    parameters = {"connection": outcome} | ({} if name is None else {"service": name})
    return f"{before}{'&' if '?' in before else '?'}{urlencode(parameters)}{mark}{fragment}"
