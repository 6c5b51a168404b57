"""`/v1/stream/__ds/…`: subscriptions to streams, and the requests of the workers that they wake."""

from typing import Annotated, Any
from urllib.parse import quote

from litestar import Controller, Request, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import PathParameter

from khala.api.context import Context
from khala.api.http.request_origin import base_url
from khala.api.streams import subscription_types as types
from khala.api.streams.stream_access import space_of
from khala.domain.access import Caller
from khala.domain.errors import KhalaError
from khala.domain.streams.stream_names import CONTROL_SEGMENT, PREFIX, validated_name
from khala.store.streams import subscriptions
from khala.stream_wakes.webhook_sender import listed_stream

CONTROL_PATH = f"{PREFIX}{CONTROL_SEGMENT}"
KEYS_PATH = f"{CONTROL_PATH}/jwks.json"
KEYS_TYPE = "application/jwk-set+json"
MAX_BODY_BYTES = 2 << 20

SubscriptionName = Annotated[str, PathParameter(description="The name of the subscription.")]
LinkedStream = Annotated[str, PathParameter(description="The name of the stream. It may contain slashes.")]


def _error(_: Request[Any, Any, Any], error: KhalaError) -> Response[dict[str, object]]:
    status, body = types.error_body(error)
    headers = {} if error.retry_after is None else {"Retry-After": str(max(1, round(error.retry_after)))}
    return Response(body, status_code=status, headers=headers)


class SubscriptionController(Controller):
    """Subscriptions of the caller's streams."""

    path = f"/{CONTROL_SEGMENT}"
    include_in_schema = False
    request_max_body_size = MAX_BODY_BYTES
    exception_handlers = {KhalaError: _error}  # noqa: RUF012

    @get("/jwks.json", lenient=True)
    async def read_keys(self, context: NamedDependency[Context]) -> Response[dict[str, object]]:
        """Return the public keys with which receivers check the signatures of wakes."""
        key = await context.streams.webhooks.read_key()
        return Response({"keys": [key.jwk]}, media_type=KEYS_TYPE, headers={"Cache-Control": "public, max-age=300"})

    @put("/subscriptions/{name:str}", raw_body=True, lenient=True)
    async def create(
        self, request: Request[Any, Any, Any], context: NamedDependency[Context], caller: NamedDependency[Caller],
        name: SubscriptionName,
    ) -> Response[dict[str, object]]:  # fmt: skip
        """Create the subscription. The same request again finds it."""
        space, name = space_of(context, caller), types.subscription_name(name)
        config = types.decode(await request.body(), types.SubscriptionBody).config()
        if config.webhook_url is not None:
            await context.streams.webhooks.check(config.webhook_url)
        origin = base_url(request, context.origins)
        url = f"{origin}{CONTROL_PATH}/subscriptions/{quote(name, safe='')}"
        view, is_new = await subscriptions.create(context.db, space, name, config, url)
        shown = types.shown_subscription(view, await _signing(context, origin))
        return Response(shown, status_code=201 if is_new else 200)

    @get("/subscriptions/{name:str}", lenient=True)
    async def read(
        self, request: Request[Any, Any, Any], context: NamedDependency[Context], caller: NamedDependency[Caller],
        name: SubscriptionName,
    ) -> Response[dict[str, object]]:  # fmt: skip
        """Return the subscription, and up to where its streams are acknowledged."""
        view = await subscriptions.find(context.db, space_of(context, caller), types.subscription_name(name))
        return Response(types.shown_subscription(view, await _signing(context, base_url(request, context.origins))))

    @delete("/subscriptions/{name:str}", status_code=204, lenient=True)
    async def remove(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], name: SubscriptionName
    ) -> None:
        """Delete the subscription."""
        await subscriptions.delete(context.db, space_of(context, caller), types.subscription_name(name))

    @post("/subscriptions/{name:str}/streams", status_code=204, raw_body=True, lenient=True)
    async def add_streams(
        self, request: Request[Any, Any, Any], context: NamedDependency[Context], caller: NamedDependency[Caller],
        name: SubscriptionName,
    ) -> None:  # fmt: skip
        """Name more streams one by one."""
        space, name = space_of(context, caller), types.subscription_name(name)
        body = types.decode(await request.body(), types.StreamsBody)
        await subscriptions.add_streams(context.db, space, name, types.named_streams(body.streams))

    @delete("/subscriptions/{name:str}/streams/{stream:path}", status_code=204, lenient=True)
    async def remove_stream(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], name: SubscriptionName,
        stream: LinkedStream,
    ) -> None:  # fmt: skip
        """Do not name this stream any more."""
        space, name = space_of(context, caller), types.subscription_name(name)
        await subscriptions.remove_stream(context.db, space, name, validated_name(stream))

    @post("/subscriptions/{name:str}/claim", status_code=200, raw_body=True, lenient=True)
    async def claim(
        self, request: Request[Any, Any, Any], context: NamedDependency[Context], caller: NamedDependency[Caller],
        name: SubscriptionName,
    ) -> dict[str, object]:  # fmt: skip
        """Give the wake to the worker that asks first."""
        space, name = space_of(context, caller), types.subscription_name(name)
        worker = types.subscription_name(types.decode(await request.body(), types.ClaimBody).worker)
        view, token = await subscriptions.claim(context.db, space, name, worker)
        state = view.subscription.state
        return {
            "wake_id": state.wake_id,
            "generation": state.generation,
            "token": token,
            "streams": [listed_stream(cursor) for cursor in view.cursors],
            "lease_ttl_ms": view.subscription.config.lease_ms,
        }

    # Workers authenticate by the token of their wake, and need no account.
    @post(
        ["/subscriptions/{name:str}/callback", "/subscriptions/{name:str}/ack"],
        status_code=200, raw_body=True, lenient=True,
    )  # fmt: skip
    async def acknowledge(
        self, request: Request[Any, Any, Any], context: NamedDependency[Context], name: SubscriptionName
    ) -> dict[str, object]:
        """Store what the worker has processed, and end the wake or extend its lease."""
        report = types.decode(await request.body(), types.ReportBody)
        next_wake = await subscriptions.acknowledge(
            context.db,
            report.request(request.headers.get("authorization"), name),
            context.streams.limits,
        )
        return {"ok": True, "next_wake": next_wake}

    @post("/subscriptions/{name:str}/release", status_code=204, raw_body=True, lenient=True)
    async def release(
        self, request: Request[Any, Any, Any], context: NamedDependency[Context], name: SubscriptionName
    ) -> None:
        """End the wake without an acknowledgement."""
        report = types.decode(await request.body(), types.ReportBody)
        await subscriptions.release(
            context.db,
            report.request(request.headers.get("authorization"), name),
            context.streams.limits,
        )


async def _signing(context: Context, origin: str) -> dict[str, str]:
    key = await context.streams.webhooks.read_key()
    return {"alg": "ed25519", "kid": key.key_id, "jwks_url": f"{origin}{KEYS_PATH}"}
