"""Authenticates requests to the MCP servers by access tokens, and tells clients how to get one."""

import re
from typing import Any

import msgspec
from litestar import Request
from litestar.exceptions import NotAuthorizedException, PermissionDeniedException

from khala.api.accounts.authentication import authenticate_request
from khala.api.context import Context
from khala.api.http.request_origin import client_network
from khala.api.oauth.resources import challenge, resource_url
from khala.domain import oauth
from khala.domain.access import Caller
from khala.domain.errors import Unauthorized
from khala.store.accounts import external_users, oauth_grants

Connection = Request[Any, Any, Any]

ACCESS_TOKEN = re.compile(r"bearer +([^ ]+) *", re.IGNORECASE)
JWT_DOTS = 2


async def authenticate(request: Connection, context: Context, group: str) -> tuple[Caller, bool]:
    """Return the caller of an MCP server, and whether an access token of OAuth authenticates them.

    Raises `NotAuthorizedException`, with a challenge, if the token is invalid, or if there is none and one is required.
    """
    try:
        caller = await _oauth_caller(request, context, group)
        is_oauth = caller is not None
        caller = caller or await authenticate_request(request, context)
    except Unauthorized as error:
        headers = challenge(request, context, group, error="invalid_token")
        raise NotAuthorizedException(error.message, headers=headers) from error
    if context.oauth.mode == "required" and caller.user_id is None:
        raise unauthenticated(request, context, group)
    return caller, is_oauth


def unauthenticated(request: Connection, context: Context, group: str) -> NotAuthorizedException:
    """Return the error for a request without an account."""
    message = "This requires an account. Send the header Authorization: Bearer, followed by a token."
    return NotAuthorizedException(message, headers=challenge(request, context, group))


def insufficient_scope(request: Connection, context: Context, group: str) -> PermissionDeniedException:
    """Return the error for a request that takes more scopes than its access token has."""
    headers = challenge(request, context, group, error="insufficient_scope")
    return PermissionDeniedException("This takes the scope khala:write.", headers=headers)


async def _oauth_caller(request: Connection, context: Context, group: str) -> Caller | None:
    """Return the caller of an access token; None if the request has none, but perhaps other credentials."""
    match = ACCESS_TOKEN.fullmatch(request.headers.get("authorization", ""))
    if context.oauth.mode == "off" or match is None:
        return None
    token = match[1]
    if context.oauth.external is not None:
        caller = await _external_caller(request, context, group, token)
    elif oauth.parse_secret(oauth.ACCESS_PREFIX, token) is not None:
        async with context.db.driver() as driver:
            caller = await oauth_grants.find(driver, token, resource_url(request, context, group))
        if caller is None:
            raise Unauthorized("This access token is invalid or has expired.")
    else:
        return None
    return caller and msgspec.structs.replace(caller, network=client_network(request, context.origins))


async def _external_caller(request: Connection, context: Context, group: str, token: str) -> Caller | None:
    """Return the caller of a JWT of the authorization server; None if it is a token of Khala's own."""
    assert context.oauth.external is not None
    if token.count(".") != JWT_DOTS:
        return None
    try:
        verified = await context.oauth.external.verify_for(token, resource_url(request, context))
    except Unauthorized:
        if not group:
            raise
        verified = await context.oauth.external.verify_for(token, resource_url(request, context, group))
    user = await external_users.find_or_create(context.db, verified.identity, Caller())
    scopes = oauth.caller_scopes(verified.scopes)
    return Caller(user_id=user.id, name=user.name, scopes=scopes, expires_at=verified.expires_at)
