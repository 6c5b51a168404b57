"""A real OpenID Provider as a process, where users sign in by name without a password.

with running() as provider:
    begun = await Provider(provider.settings()).begin(CALLBACK)
    url = await provider.authorize(begun.url, login="bob")     # the redirect back, with its code
"""

import json
import select
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
from authlib.common.security import generate_token
from authlib.oauth2.rfc7636 import create_s256_code_challenge

from khala.identity.oidc import OidcSettings
from tests.support.oidc.install import NODE, installed

CALLBACK = "http://127.0.0.1:1/auth/callback"
"""No server listens there; `authorize` stops before it."""
SIGNED_OUT = "http://127.0.0.1:1/"
AUDIENCE = "https://khala.example/api"
"""The audience of the provider's access tokens, if one is requested."""
SECRET = "a+b%2F:c/d&e=f~g"  # with all characters that a form encodes
ACCOUNTS: Mapping[str, Mapping[str, object]] = {
    "alice": {"name": "Alice Example", "email": "Alice@Example.org", "email_verified": True},
    "bob": {"name": "Bob Example", "email": "bob@example.org", "email_verified": False},
    "carol": {},
}
CLIENTS = {"khala": "RS256", "khala-public": "ES256", "khala-modern": "EdDSA"}
"""Clients by the algorithm of their ID tokens. Only the first has a secret."""
MACHINE: Mapping[str, object] = {
    "client_id": "khala-machine", "client_secret": SECRET, "grant_types": ["client_credentials"],
    "redirect_uris": [], "response_types": [],
}  # fmt: skip
"""A client that gets tokens for itself."""


class RealProvider:
    """The process."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        command = [str(NODE), str(installed()), json.dumps(settings)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.issuer = str(self._read_answer()["issuer"])

    def settings(self, client: str = "khala", audience: str | None = None) -> OidcSettings:
        """The settings of Khala as this client."""
        secret = SECRET if client == "khala" else None
        return OidcSettings(
            issuer=self.issuer, client_id=client, client_secret=secret, audience=audience, name="Example"
        )

    def rotate_keys(self) -> None:
        """Replace the signing keys."""
        self._call("rotate")

    def answered(self, path: str) -> int:
        """The number of requests for this path."""
        return int(self._call("answered").get(path, 0))

    async def authorize(self, url: str, *, login: str = "alice", **parameters: str) -> str:
        """Follow the redirects from `url` as a new browser until they leave the provider; returns the last target."""
        async with httpx.AsyncClient() as browser:
            target = str(httpx.URL(url).copy_merge_params({"login_hint": login, **parameters}))
            while target.startswith(self.issuer):
                response = await browser.get(target)
                assert response.is_redirect, response.text
                target = str(response.next_request.url if response.next_request else "")
            return target

    async def code(self, url: str, *, login: str = "alice") -> str:
        """The authorization code at the end of these redirects."""
        return parameter(await self.authorize(url, login=login), "code")

    async def access_token(self, *, login: str = "alice", resource: str = AUDIENCE) -> str:
        """A JWT for `resource`, as another application gets it for its user."""
        verifier = generate_token(48)
        request = {
            "client_id": "khala-public",
            "redirect_uri": CALLBACK,
            "response_type": "code",
            "scope": "openid api",
        }
        request |= {"code_challenge": create_s256_code_challenge(verifier), "code_challenge_method": "S256"}
        url = await self.authorize(f"{self.issuer}/auth", login=login, resource=resource, **request)
        form = {"grant_type": "authorization_code", "code": parameter(url, "code"), "code_verifier": verifier}
        form |= {"client_id": "khala-public", "redirect_uri": CALLBACK, "resource": resource}
        async with httpx.AsyncClient() as program:
            answer = await program.post(f"{self.issuer}/token", data=form)
        return str(answer.raise_for_status().json()["access_token"])

    def kill(self) -> None:
        """Kill the process. It also ends with its parent."""
        self._process.kill()
        self._process.communicate()

    def _call(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._read_answer()

    def _read_answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], 30)
        line = self._process.stdout.readline() if readable else ""
        if not line:
            self.kill()
        assert line, "the provider sent no answer"
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def running(
    *, callbacks: tuple[str, ...] = (CALLBACK,), signed_out: tuple[str, ...] = (SIGNED_OUT,), conform: bool = True
) -> Iterator[RealProvider]:
    """A provider that redirects only to these URIs. With `conform`, the ID token has no names and addresses."""
    clients = [*(_client(client, callbacks, signed_out) for client in CLIENTS), MACHINE]
    settings = {"clients": clients, "accounts": ACCOUNTS, "audience": AUDIENCE, "conform": conform}
    provider = RealProvider(settings)
    try:
        yield provider
    finally:
        provider.kill()


def parameter(url: str, name: str) -> str:
    """A parameter of the URL's query."""
    found = parse_qs(urlsplit(url).query)
    assert name in found, url
    return found[name][0]


def _client(client: str, callbacks: tuple[str, ...], signed_out: tuple[str, ...]) -> dict[str, object]:
    description: dict[str, object] = {"client_id": client, "id_token_signed_response_alg": CLIENTS[client]}
    description |= {"redirect_uris": callbacks, "post_logout_redirect_uris": signed_out}
    secret = {"client_secret": SECRET} if client == "khala" else {"token_endpoint_auth_method": "none"}
    return description | secret
