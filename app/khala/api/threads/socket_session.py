"""One client's session on a WebSocket: handles its frames and enforces its limits."""

import time
from typing import Any, assert_never
from uuid import UUID

import msgspec

from khala.api.accounts.authentication import authenticate_message_token, with_keys
from khala.api.context import Context
from khala.api.http import strict_fields
from khala.api.http.problem_details import limit_fields
from khala.api.validation import NUL
from khala.domain import frames, unknown_fields
from khala.domain.access import Caller, require_scope
from khala.domain.errors import (
    Forbidden,
    InvalidInput,
    KhalaError,
    LimitReached,
    PayloadTooLarge,
    RateLimited,
    ReachedLimit,
    Unauthorized,
)
from khala.domain.token_bucket import TokenBucket
from khala.live.access_guard import is_unexpired, without_account
from khala.live.observer import Observer

MAX_FRAME_BYTES = 64 * 1024
"""The maximum size of a client's frame."""
MAX_SUBSCRIPTIONS = 100
MAX_BAD_FRAMES = 10
"""After so many invalid frames or frames over the rate limit, the connection is closed."""
MAX_PRESENCE_STATE_BYTES = 1024
"""The maximum size of a presence state."""
FRAME_RATE = (300, 50.0)
"""Frames in a burst, and per second."""
FRAME_LIMIT = ReachedLimit("frames_per_second", "connection", int(FRAME_RATE[1]))
PRESENCE_RATE = (20, 5.0)
"""Presence frames in a burst, and per second."""
PRESENCE_LIMIT = ReachedLimit("presence_frames_per_second", "connection", int(PRESENCE_RATE[1]))
SUBSCRIPTION_LIMIT = ReachedLimit("subscriptions", "connection", MAX_SUBSCRIPTIONS)

decoder: msgspec.json.Decoder[frames.ClientFrame] = msgspec.json.Decoder(frames.ClientFrame)


class SocketSession:
    """One connection: its account and its rate limits."""

    def __init__(self, context: Context, client: Observer, account: Caller) -> None:
        self._context = context
        self._live = context.live
        self._client = client
        self._account = account
        self._watching: UUID | None = None
        self._frames = TokenBucket(*FRAME_RATE)
        self._presence = TokenBucket(*PRESENCE_RATE)
        self._bad_frames = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether the client has sent too many bad frames."""
        return self._bad_frames >= MAX_BAD_FRAMES

    async def handle(self, message: Any) -> frames.Frame | None:
        """Handle a frame, and return the reply, if any."""
        try:
            if not self._frames.take(time.monotonic()):
                self._bad_frames += 1
                raise RateLimited("Too many frames. Send fewer.", limit=FRAME_LIMIT, retry_after=1.0)
            return await self._dispatch(_decode(message))
        except KhalaError as error:
            self._bad_frames += isinstance(error, (InvalidInput, PayloadTooLarge))
            path = (error.path or None) if isinstance(error, InvalidInput) else None
            frame = frames.ErrorFrame(thread_id=_thread_id(message), code=error.code, message=error.message, path=path)
            return msgspec.structs.replace(frame, **limit_fields(error)) if isinstance(error, LimitReached) else frame

    async def _dispatch(self, frame: frames.ClientFrame) -> frames.Frame | None:
        match frame:
            case frames.Subscribe():
                await self._subscribe(frame)
            case frames.Unsubscribe():
                self._live.threads.unsubscribe(self._client, frame.thread_id)
            case frames.SetPresence():
                self._set_presence(frame)
            case frames.Watch():
                await self._watch(frame.after)
            case frames.Unwatch():
                self._unwatch()
            case frames.Authenticate():
                return await self._authenticate(frame.token)
            case frames.Ping():
                return frames.Pong()
            case _:
                assert_never(frame)
        return None

    async def _subscribe(self, frame: frames.Subscribe) -> None:
        hub, client = self._live.threads, self._client
        if client.count_topics(hub) >= MAX_SUBSCRIPTIONS and hub.find_subscription(client, frame.thread_id) is None:
            message = f"A connection follows at most {MAX_SUBSCRIPTIONS} threads."
            raise RateLimited(message, limit=SUBSCRIPTION_LIMIT)
        caller = with_keys(self._current(), frame.anon_key, frame.share_key)
        require_scope(caller, "read")
        authorization = await hub.authorize(self._context.db, frame.thread_id, caller)
        self._live.presence.add_watcher(hub.subscribe(client, frame.thread_id, frame.after, authorization))

    def _set_presence(self, frame: frames.SetPresence) -> None:
        subscription = self._live.threads.find_subscription(self._client, frame.thread_id)
        if not self._presence.take(time.monotonic()):
            message = "Too many presence frames. Send changes only, at most five times a second."
            raise RateLimited(message, limit=PRESENCE_LIMIT, retry_after=1.0)
        if subscription is None:
            raise InvalidInput("Subscribe to the thread before you send presence.", path="threadId")
        if frame.state is None:
            self._live.presence.remove(subscription)
        else:
            self._live.presence.update(subscription, _state(frame.state))

    async def _watch(self, after: int | None) -> None:
        caller = self._current()
        if caller.user_id is None:
            raise Unauthorized("Sign in to watch your threads.")
        require_scope(caller, "read")
        try:
            authorization = await self._live.accounts.authorize(self._context.db, caller.user_id, caller)
        except Forbidden as error:
            raise Unauthorized("Sign in again to watch your threads.") from error
        self._unwatch()
        self._live.accounts.subscribe(self._client, caller.user_id, after, authorization)
        self._watching = caller.user_id

    def _unwatch(self) -> None:
        if self._watching is not None:
            self._live.accounts.unsubscribe(self._client, self._watching)
            self._watching = None

    async def _authenticate(self, token: str) -> frames.Authenticated:
        account = await authenticate_message_token(token, self._context)
        self._account = msgspec.structs.replace(account, network=self._account.network)
        for subscription in self._client.subscriptions.values():
            if _extends(account, subscription.caller):
                self._live.guard.renew(subscription, account)
        return frames.Authenticated(user_id=account.user_id, thread_id=account.only_thread)

    def _current(self) -> Caller:
        """Return the connection's account, or an anonymous caller if its credential has expired."""
        return self._account if is_unexpired(self._account) else without_account(self._account)


def _extends(new: Caller, old: Caller) -> bool:
    if new.only_thread is not None:
        return new.only_thread == old.only_thread
    if new.user_id is None or new.user_id != old.user_id or old.expires_at is None or "read" not in new.scopes:
        return False
    return new.expires_at is None or new.expires_at > old.expires_at


def _state(state: dict[str, Any]) -> str:
    """Return the state as canonical JSON: equal states have equal text."""
    try:
        encoded = msgspec.json.encode(state, order="deterministic")
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"This state can't be stored: {error}.", path="state") from error
    if len(encoded) > MAX_PRESENCE_STATE_BYTES:
        raise InvalidInput(f"A state has at most {MAX_PRESENCE_STATE_BYTES:,} bytes.", path="state")
    if NUL.search(encoded):
        raise InvalidInput("NUL characters can't be stored.", path="state")
    return encoded.decode()


def _decode(message: Any) -> frames.ClientFrame:
    text = message.get("text")
    if text is None:
        raise InvalidInput("Frames are JSON text.")
    if len(text) > MAX_FRAME_BYTES or len(text.encode()) > MAX_FRAME_BYTES:
        raise PayloadTooLarge(f"A frame has at most {MAX_FRAME_BYTES:,} bytes.")
    try:
        frame = decoder.decode(text)
        fields = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(f"This is not a frame of this protocol: {error}.") from error
    strict_fields.refuse(unknown_fields.find(fields, frames.ClientFrame))
    return frame


class _ThreadFrame(msgspec.Struct, rename="camel"):
    thread_id: UUID | None = None


def _thread_id(message: Any) -> Any:
    """Return the thread id of an invalid frame, if it can be read."""
    try:
        return msgspec.json.decode(message.get("text") or "{}", type=_ThreadFrame).thread_id
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
