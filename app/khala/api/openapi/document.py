"""The OpenAPI document: what the routes can't say about themselves."""

from dataclasses import dataclass
from typing import Any

from litestar import MediaType, Request, Router
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, Example, Operation, RequestBody, Tag
from litestar.types import BeforeRequestHookHandler

from khala.api.accounts.authentication import SCHEMES
from khala.api.openapi import constraints
from khala.domain.frames import SUBPROTOCOL

DESCRIPTION = f"""
Durable, realtime chat threads. Send a message with `POST /api/threads/{{thread_id}}/send`, follow the answer live, and
read it whole at any time. Names are camelCase, ids are UUIDs, times are RFC 3339 in UTC, money is a decimal string in
USD. Fields of an answer that a client does not know are ignored by it; fields of a request that the server does not
know are refused.

**The feed** is a WebSocket at `/api/ws` (subprotocol `{SUBPROTOCOL}`, JSON text frames), which OpenAPI can't describe.
Say `{{"type": "subscribe", "threadId": "…", "anonKey": "…", "after": 12}}`; what comes is a `snapshot` if `after` is
absent or can't be served, then one `delta` for each change. `GET /api/threads/{{thread_id}}/events` is the same feed as
server-sent events. `docs/protocol.md` specifies the frames.

**Errors** are `application/problem+json` (RFC 9457). `code` is stable; `errors` names the places of an
`invalid_input`; `rate_limited` and `unavailable` come with `Retry-After`, in seconds.
"""

TAGS = [
    Tag("Threads", "Conversations: make, read, rename, empty and delete them, and send to them."),
    Tag("Sharing", "Claim threads, and let others in."),
    Tag("Runs", "Answers being written, and those that were."),
    Tag("Blobs", "Files that were uploaded, and what was too large for a part."),
    Tag("Tools", "What agents can do, and the MCP servers that they do it with."),
    Tag("Feed", "Changes as they are committed."),
    Tag("Accounts", "Sign in and out, sessions, API tokens, and all that an account has."),
    Tag("Health", "For load balancers and people."),
]


@dataclass
class OptionalBody(Operation):
    """An operation whose body may be left out, which Litestar takes for required."""

    def __post_init__(self) -> None:
        """Say so."""
        if isinstance(self.request_body, RequestBody):
            self.request_body.required = False


class CompleteJson(JsonRenderPlugin):
    """The document as JSON, with the constraints that Litestar can't read from types."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """Complete it and say it."""
        return super().render(request, constraints.complete(openapi_schema))


def example(summary: str, **value: Any) -> list[Example]:
    """The one example of a body."""
    return [Example(summary=summary, value=value)]


def config(version: str, *, before_request: BeforeRequestHookHandler) -> OpenAPIConfig:
    """What `GET /api/openapi.json` answers. `before_request` may refuse to."""
    return OpenAPIConfig(
        title="Khala",
        version=version,
        description=DESCRIPTION,
        tags=TAGS,
        components=Components(security_schemes=dict(SCHEMES)),
        use_handler_docstrings=True,
        # Not at /api, beneath which Litestar would answer unknown paths with a page.
        openapi_router=Router(
            "/api/openapi.json", route_handlers=[], before_request=before_request, include_in_schema=False
        ),
        render_plugins=[CompleteJson(path="/", media_type=MediaType.JSON)],
    )
