"""A push service on this machine, and the browsers that it delivers to: they decrypt and verify as real ones do."""

import asyncio
import contextlib
import os
import queue
import threading
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ec import ECDH, SECP256R1, EllipticCurvePublicKey, generate_private_key
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from joserfc import jwt
from joserfc.jwk import ECKey

from khala.store.push.push_subscriptions import BrowserEndpoint

DEADLINE_SECONDS = 20


class Browser:
    """A browser with its keys, at `endpoint`. It accepts only notifications of the server with `server_key`."""

    def __init__(self, endpoint: str, server_key: str) -> None:
        self.endpoint = endpoint
        self.server_key = server_key
        self._key = generate_private_key(SECP256R1())
        self.public_key = self._key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        self.auth = os.urandom(16)

    @property
    def body(self) -> dict[str, Any]:
        """The subscription as a page sends it."""
        keys = {"p256dh": encoded(self.public_key), "auth": encoded(self.auth)}
        return {"endpoint": self.endpoint, "keys": keys}

    def stored(self, *, answers: bool = False) -> BrowserEndpoint:
        """The subscription as the server stores it."""
        return BrowserEndpoint(endpoint=self.endpoint, public_key=self.public_key, auth=self.auth, answers=answers)

    def decrypt(self, body: bytes) -> Any:
        """The payload of a message (RFC 8291, section 4)."""
        salt, size, length = body[:16], int.from_bytes(body[16:20], "big"), body[20]
        sender, text = body[21 : 21 + length], body[21 + length :]
        assert len(body) <= 4096
        assert len(text) <= size
        shared = self._key.exchange(ECDH(), EllipticCurvePublicKey.from_encoded_point(SECP256R1(), sender))
        secret = derived(shared, self.auth, b"WebPush: info\0" + self.public_key + sender, 32)
        key, nonce = (derived(secret, salt, b"Content-Encoding: %b\0" % name, n) for name, n in CODING.items())
        padded = AESGCM(key).decrypt(nonce, text, None).rstrip(b"\0")
        assert padded.endswith(b"\x02"), "the last record"
        return msgspec.json.decode(padded[:-1])

    def verify(self, authorization: str, origin: str) -> dict[str, Any]:
        """The claims of a VAPID header (RFC 8292), which must be for this push service and signed by the server."""
        scheme, _, rest = authorization.partition(" ")
        fields = dict(field.strip().split("=", 1) for field in rest.split(","))
        assert scheme == "vapid"
        assert fields["k"] == self.server_key, "the key with which the browser has subscribed"
        point = urlsafe_b64decode(fields["k"] + "=" * (-len(fields["k"]) % 4))
        x, y = (encoded(half) for half in (point[1:33], point[33:]))
        key = ECKey.import_key({"kty": "EC", "crv": "P-256", "x": x, "y": y})
        claims = jwt.decode(fields["t"], key, algorithms=["ES256"]).claims
        assert claims["aud"] == origin
        assert time.time() < claims["exp"] <= time.time() + 24 * 3600
        return claims


CODING = {b"aes128gcm": 16, b"nonce": 12}


def derived(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """A key by HKDF."""
    return HKDF(SHA256(), length, salt, info).derive(secret)


def encoded(data: bytes) -> str:
    """The bytes in base64url."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


class ReceivedPush(msgspec.Struct, frozen=True):
    """A notification that a browser has decrypted. Names of headers are in lower case."""

    headers: dict[str, str]
    claims: dict[str, Any]
    message: dict[str, Any]


class PushService:
    """The push service at `origin`. It answers with `status` and `headers`, and records what it accepts."""

    def __init__(self) -> None:
        self.origin = ""
        self.status = 201
        self.headers: dict[str, str] = {}
        self.received: list[ReceivedPush] = []
        self.refused = 0
        self._browsers: dict[str, Browser] = {}
        self._arrived = asyncio.Condition()

    def browser(self, server_key: str) -> Browser:
        """A new browser that subscribes with this key."""
        path = f"/push/{len(self._browsers)}"
        self._browsers[path] = Browser(self.origin + path, server_key)
        return self._browsers[path]

    async def handle(self, request: web.Request) -> web.Response:
        """Take a notification, as RFC 8030 has it."""
        browser = self._browsers[request.path]
        headers = {name.lower(): value for name, value in request.headers.items()}
        assert headers["content-encoding"] == "aes128gcm"
        received = ReceivedPush(
            headers, browser.verify(headers["authorization"], self.origin), browser.decrypt(await request.read())
        )
        async with self._arrived:
            if self.status < 300:
                self.received.append(received)
            else:
                self.refused += 1
            self._arrived.notify_all()
        return web.Response(status=self.status, headers=self.headers)

    async def wait_for(self, count: int) -> list[ReceivedPush]:
        """All notifications, once there are so many."""
        async with asyncio.timeout(DEADLINE_SECONDS), self._arrived:
            await self._arrived.wait_for(lambda: len(self.received) >= count)
        return self.received


@contextlib.contextmanager
def collected_pushes() -> Iterator[tuple[str, queue.Queue[tuple[dict[str, str], bytes]]]]:
    """A push service in a thread, for tests in a real browser: its endpoint, and the headers and bodies of requests."""
    received: queue.Queue[tuple[dict[str, str], bytes]] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.put(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(201)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/push", received
        finally:
            server.shutdown()
            thread.join()


@contextlib.asynccontextmanager
async def push_service() -> AsyncIterator[PushService]:
    """Serve on a port of its own."""
    service = PushService()
    application = web.Application()
    application.router.add_post("/push/{browser}", service.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.05)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        service.origin = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield service
    finally:
        await runner.cleanup()
