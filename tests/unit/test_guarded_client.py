"""Requests behind the SSRF guard, by names whose addresses change. No connection is made."""

from typing import Any

import httpcore
import pytest

from khala.tools.http_client import GuardedClient
from khala.tools.port import ToolError
from khala.tools.ssrf_guard import parse_networks
from khala.tools.webhook_client import WebhookClient

PRIVATE, PUBLIC = "10.0.0.5", "93.184.216.34"


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The addresses to which a connection was attempted."""
    attempts: list[tuple[str, int]] = []

    async def connect(_: httpcore.AnyIOBackend, host: str, port: int, *more: Any) -> httpcore.AsyncNetworkStream:
        attempts.append((host, port))
        raise httpcore.ConnectError("there is no network in this test")

    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connect)
    return attempts


async def test_a_webhook_that_leaves_the_operators_network_gets_no_request_without_tls(
    connected: list[tuple[str, int]],
) -> None:
    answers = iter([PRIVATE, PRIVATE, PUBLIC, PUBLIC])

    async def resolve(host: str, port: int) -> list[str]:
        return [next(answers)]

    allow = parse_networks(["10.0.0.0/8"])
    client = WebhookClient(GuardedClient(allow=allow, resolve=resolve, needs_tls=True))
    limits: dict[str, Any] = {"timeout_seconds": 5, "max_bytes": 100}
    await client.check("http://hooks.example/")
    with pytest.raises(ToolError, match="does not accept connections"):
        await client.post("http://hooks.example/", (), b"{}", **limits)
    with pytest.raises(ToolError, match="use https"):
        await client.post("http://hooks.example/", (), b"{}", **limits)
    with pytest.raises(ToolError, match="does not accept connections"):
        await client.post("https://hooks.example/", (), b"{}", **limits)
    assert connected == [(PRIVATE, 80), (PUBLIC, 443)]


@pytest.mark.parametrize("later", ["127.0.0.1", "::1", "169.254.169.254", "::ffff:127.0.0.1", "64:ff9b::7f00:1"])
async def test_a_webhook_whose_name_leads_inside_after_the_check_gets_no_request(
    connected: list[tuple[str, int]], later: str
) -> None:
    answers = iter([[PUBLIC], [later], [PUBLIC, later], [PUBLIC]])

    async def resolve(host: str, port: int) -> list[str]:
        return next(answers)

    client = WebhookClient(GuardedClient(resolve=resolve, needs_tls=True))
    limits: dict[str, Any] = {"timeout_seconds": 5, "max_bytes": 100}
    await client.check("https://hooks.example/")
    for _ in range(2):
        with pytest.raises(ToolError, match="not public"):
            await client.post("https://hooks.example/", (), b"{}", **limits)
    assert connected == []
    with pytest.raises(ToolError, match="does not accept connections"):
        await client.post("https://hooks.example/", (), b"{}", **limits)
    assert connected == [(PUBLIC, 443)], "the address that was checked, and not the name"
