"""Push notifications over REST: the server's public key, and the subscriptions of browsers."""

from base64 import urlsafe_b64decode
from datetime import datetime
from typing import Annotated
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from litestar import Controller, delete, get, put
from litestar.di import NamedDependency
from litestar.params import BodyKwarg, PathParameter
from msgspec import Meta

from khala.api.accounts.authentication import BY_ACCOUNT_OR_ANON_KEY
from khala.api.context import Context
from khala.api.http.problem_details import documented_errors
from khala.api.openapi.document import example
from khala.api.types import ApiStruct
from khala.api.validation import check_text
from khala.domain.access import Caller
from khala.domain.errors import InvalidInput, NotFound
from khala.domain.push import AUTH_BYTES, MAX_ENDPOINT_CHARACTERS, PUBLIC_KEY_BYTES, check_endpoint
from khala.store.memories.memory_settings import subject_of
from khala.store.push import push_subscriptions
from khala.store.push.push_subscriptions import BrowserEndpoint

DENIED = ("invalid_input", "unauthorized", "forbidden", "not_found", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type")
MAX_KEY_CHARACTERS = 128

BROWSER = {
    "endpoint": "https://updates.push.services.mozilla.com/wpush/v2/gAAAA",
    "keys": {
        "p256dh": "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
        "auth": "BTBZMqHH6r4Tts7J_aSIgg",
    },
}
"""A subscription with the keys of the example in RFC 8291."""

SubscriptionId = Annotated[UUID, PathParameter(description="The subscription's id, as subscribing returns it.")]
KeyText = Annotated[str, Meta(min_length=1, max_length=MAX_KEY_CHARACTERS)]


class PushKeys(ApiStruct, frozen=True, kw_only=True):
    """The browser's keys, in base64url, as `PushSubscription.toJSON()` has them."""

    p256dh: KeyText
    auth: KeyText


class NewPushSubscription(ApiStruct, frozen=True, kw_only=True):
    """A browser's `PushSubscription`. With `answers`, it is also told when a long answer is complete."""

    endpoint: Annotated[str, Meta(min_length=1, max_length=MAX_ENDPOINT_CHARACTERS)]
    keys: PushKeys
    answers: bool = False


class PushSubscription(ApiStruct, frozen=True, kw_only=True):
    """A stored subscription. The same browser and person have the same `id` again."""

    id: UUID
    answers: bool
    created_at: datetime


class PushServer(ApiStruct, frozen=True, kw_only=True):
    """The key with which browsers subscribe: `applicationServerKey`, in base64url."""

    public_key: str


class PushController(Controller):
    """Notifications of an account's browsers, and of a guest's."""

    path = "/me/push"
    tags = ("Accounts",)
    security = BY_ACCOUNT_OR_ANON_KEY

    @get(
        "/",
        operation_id="readPushKey",
        summary="Read the key for push notifications",
        response_description="The server's public key.",
        responses=documented_errors(*DENIED),
    )
    async def read(self, context: NamedDependency[Context], caller: NamedDependency[Caller]) -> PushServer:
        """Read the public key with which a browser subscribes. 404 where the operator has turned notifications off."""
        subject_of(caller)
        _require_push(context)
        return PushServer(public_key=await context.push.sender.public_key())

    @put(
        "/subscriptions",
        operation_id="subscribeToPush",
        summary="Subscribe a browser to push notifications",
        opt={"scope": "account"},
        response_description="The subscription.",
        responses=documented_errors(*DENIED, *BODY),
    )
    async def subscribe(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        data: Annotated[NewPushSubscription, BodyKwarg(examples=example("A browser", **BROWSER))],
    ) -> PushSubscription:
        """Notify this browser when a run needs the account, or the holder of this anonymous key.

        Repeating the request confirms the subscription. It ends with the session that made it, and when the push
        service says that the browser has ended it. An anonymous key must open a thread.
        """
        _require_push(context)
        check_endpoint(check_text(data.endpoint, "endpoint"), context.push.hosts)
        browser = BrowserEndpoint(
            endpoint=data.endpoint,
            public_key=_public_key(data.keys.p256dh),
            auth=_decoded(data.keys.auth, "keys.auth", AUTH_BYTES),
            answers=data.answers,
        )
        stored = await push_subscriptions.subscribe(context.db, caller, browser)
        return PushSubscription(id=stored.id, answers=stored.answers, created_at=stored.created_at)

    @delete(
        "/subscriptions/{subscription_id:uuid}",
        operation_id="unsubscribeFromPush",
        summary="Unsubscribe a browser from push notifications",
        opt={"scope": "account"},
        response_description="The subscription is deleted.",
        responses=documented_errors(*DENIED),
    )
    async def unsubscribe(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], subscription_id: SubscriptionId
    ) -> None:
        """End a subscription of the account, or of the holder of this anonymous key."""
        await push_subscriptions.unsubscribe(context.db, caller, subscription_id)


def _require_push(context: Context) -> None:
    if not context.push.hosts:
        raise NotFound("Push notifications are turned off on this server.")


def _decoded(text: str, path: str, length: int) -> bytes:
    try:
        decoded = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        decoded = b""
    if len(decoded) != length:
        raise InvalidInput(f"This must be {length} bytes in base64url.", path=path)
    return decoded


def _public_key(text: str) -> bytes:
    key = _decoded(text, "keys.p256dh", PUBLIC_KEY_BYTES)
    try:
        EllipticCurvePublicKey.from_encoded_point(SECP256R1(), key)
    except ValueError as error:
        raise InvalidInput("This is no point of the curve P-256.", path="keys.p256dh") from error
    return key
