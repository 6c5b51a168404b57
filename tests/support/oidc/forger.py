"""An issuer with scripted tokens and responses, for providers that a client must reject.

async with forging() as forger:
    forger.id_token = forger.signed(aud="somebody else")
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
from joserfc import jwt
from joserfc.jwk import ECKey, Key, RSAKey

from khala.identity.oidc import OidcSettings

CLIENT = "khala"


@dataclass
class Answer:
    """The response of one path. With `hold`, it is delayed until this event is set."""

    body: object = field(default_factory=dict)
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    hold: asyncio.Event | None = None

    def wire(self) -> bytes:
        body = self.body if isinstance(self.body, bytes) else msgspec.json.encode(self.body)
        headers = {"content-type": "application/json", "connection": "close", **self.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"HTTP/1.1 {self.status} Scripted\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body


class Forger:
    """An issuer on this machine, at `url` once it listens."""

    def __init__(self) -> None:
        self.url = ""
        self.key: Key = RSAKey.generate_key(2048, {"kid": "first", "use": "sig"})
        self.others: list[Key] = []
        self.request_counts: Counter[str] = Counter()
        self.request_bodies: dict[str, str] = {}
        self.answers: dict[str, Answer] = {}
        self._arrived = asyncio.Condition()
        self.id_token: object = None

    @property
    def settings(self) -> OidcSettings:
        """The settings of a server that uses this issuer."""
        return OidcSettings(issuer=self.url, client_id=CLIENT, client_secret="secret", name="Example")

    @property
    def discovery(self) -> dict[str, object]:
        """The discovery document of an honest issuer."""
        paths = {"authorization_endpoint": "/auth", "token_endpoint": "/token", "jwks_uri": "/jwks"}
        return {"issuer": self.url, **{name: self.url + path for name, path in paths.items()}}

    def claims(self, **changed: object) -> dict[str, object]:
        """The claims of an honest token with changes; a claim that is None is left out."""
        now = int(time.time())
        honest = {"iss": self.url, "sub": "alice", "aud": CLIENT, "exp": now + 300, "iat": now, "nonce": "nonce"}
        return {name: value for name, value in (honest | changed).items() if value is not None}

    def signed(self, *, key: Key | None = None, header: Mapping[str, object] | None = None, **changed: object) -> str:
        """A token, signed with the issuer's key unless another is given."""
        key = key or self.key
        algorithm = "ES256" if isinstance(key, ECKey) else "RS256"
        head = {"alg": algorithm, "kid": key.kid, **(header or {})}
        return jwt.encode(head, self.claims(**changed), key, algorithms=[str(head["alg"])])

    def answer(self, path: str) -> Answer:
        """The response of this path: the scripted one, or an honest one."""
        if path in self.answers:
            return self.answers[path]
        keys = [key.as_dict(private=False) for key in (self.key, *self.others)]
        honest: dict[str, object] = {
            "/.well-known/openid-configuration": self.discovery,
            "/jwks": {"keys": keys},
            "/token": {"token_type": "Bearer", "access_token": "opaque", "id_token": self.id_token},
        }
        return Answer(honest[path]) if path in honest else Answer(status=404)

    async def wait_for_request(self, path: str, timeout: float = 5.0) -> None:
        """Wait until this path has been requested."""
        async with asyncio.timeout(timeout), self._arrived:
            await self._arrived.wait_for(lambda: self.request_counts[path] > 0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            path = head.split(" ")[1]
            _, _, length = head.partition("content-length: ")
            self.request_bodies[path] = (await reader.readexactly(int(length.split()[0]))).decode() if length else ""
            async with self._arrived:
                self.request_counts[path] += 1
                self._arrived.notify_all()
            answer = self.answer(path)
            if answer.hold is not None:
                await answer.hold.wait()
            writer.write(answer.wire())
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def forging() -> AsyncIterator[Forger]:
    """A forger that listens for as long as this is open."""
    forger = Forger()
    server = await asyncio.start_server(forger.serve, "127.0.0.1", 0)
    forger.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield forger
