"""The OpenAPI document: its description, tags and configuration."""

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
read it at any time. Names are camelCase, ids are UUIDs, times are RFC 3339 in UTC, and money is a decimal string in
USD. Clients must ignore unknown fields of responses. The server refuses unknown fields of requests.

**The feed** is a WebSocket at `/api/ws` (subprotocol `{SUBPROTOCOL}`, JSON text frames), which OpenAPI can't describe.
Send `{{"type": "subscribe", "threadId": "…", "anonKey": "…", "after": 12}}`. The server sends a `snapshot` if `after`
is absent or cannot be served, and then one `delta` for each change. `GET /api/threads/{{thread_id}}/events` is the same
feed as server-sent events. `docs/protocol.md` specifies the frames.

**Errors** are `application/problem+json` (RFC 9457). `code` is stable. `errors` lists the invalid values
of an `invalid_input`. `rate_limited` and `unavailable` have a `Retry-After` header, in seconds.
"""

TAGS = [
    Tag("Threads", "Conversations: create, read, rename, reset and delete them, and send messages."),
    Tag("Sharing", "Claim anonymous threads, and share threads with others."),
    Tag("Runs", "Runs write the answers. Read, approve and cancel them."),
    Tag("Plans", "Long work in steps, which pauses, resumes, retries and can be edited."),
    Tag("Schedules", "Messages that are sent, and plans that are started, at set times."),
    Tag("Blobs", "Uploaded files, and content that is too large for a part."),
    Tag("Agents", "Instructions, tools and models for runs, under a name."),
    Tag("Memories", "What is remembered of users and in threads."),
    Tag("Search", "Find messages, files and memories."),
    Tag("Tools", "Tools that models can call, rules for calls, and MCP servers."),
    Tag("AI SDK", "Chats for the AI SDK's `useChat`: `docs/clients/ai-sdk.md`."),
    Tag("AG-UI", "Runs for AG-UI and TanStack AI clients: `docs/ag-ui.md`."),
    Tag("Feed", "Changes of threads, when they are committed."),
    Tag("Accounts", "Sign-in, sessions, API tokens and account data."),
    Tag("Webhooks", "Events of threads, sent to your servers by the Standard Webhooks specification."),
    Tag("Executor", "Runs for workers of your own: `docs/how-to/workers.md`."),
    Tag("Console", "What administrators see and do: `docs/reference/console.md`."),
    Tag("Health", "Health checks for load balancers and operators."),
]


@dataclass
class OptionalBody(Operation):
    """An operation with an optional body, which Litestar documents as required."""

    def __post_init__(self) -> None:
        """Document the body as optional."""
        if isinstance(self.request_body, RequestBody):
            self.request_body.required = False


class CompleteJson(JsonRenderPlugin):
    """Renders the document as JSON, with constraints that Litestar cannot read from types."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """Return the completed document."""
        return super().render(request, constraints.complete(openapi_schema))


def example(summary: str, **value: Any) -> list[Example]:
    """Return the example of a body."""
    return [Example(summary=summary, value=value)]


def config(version: str, *, before_request: BeforeRequestHookHandler) -> OpenAPIConfig:
    """Return the configuration of `GET /api/openapi.json`. `before_request` may refuse a request."""
    return OpenAPIConfig(
        title="Khala",
        version=version,
        description=DESCRIPTION,
        tags=TAGS,
        components=Components(security_schemes=dict(SCHEMES)),
        use_handler_docstrings=True,
        # Not at /api: Litestar would serve a page for unknown paths below it.
        openapi_router=Router(
            "/api/openapi.json", route_handlers=[], before_request=before_request, include_in_schema=False
        ),
        render_plugins=[CompleteJson(path="/", media_type=MediaType.JSON)],
    )
