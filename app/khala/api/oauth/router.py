"""The routes of OAuth outside of `/api`."""

from litestar.types import ControllerRouterHandler

from khala.api.oauth import authorization, metadata, registration, tokens

HANDLERS: tuple[ControllerRouterHandler, ...] = (
    metadata.server_metadata,
    metadata.group_metadata,
    metadata.authorization_server_metadata,
    registration.register,
    authorization.ask_consent,
    authorization.decide,
    tokens.token,
    tokens.revoke,
)
