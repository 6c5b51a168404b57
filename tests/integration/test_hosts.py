"""The `Host` check: a page that rebinds its name to this server's address (DNS rebinding) is refused."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets import InvalidStatus

from tests.integration.test_api_threads import assert_problem
from tests.support.frames import socket
from tests.support.in_process import InProcessServer, khala
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVIL = "rebinding.example:8000"
HEALTH = ("/health", "/api/health/live", "/api/health/ready")
PATHS = (
    "/",
    "/web/icon.svg",
    "/preview",
    "/sw.js",
    "/api/openapi.json",
    "/api/threads",
    "/api/auth",
    "/groups",
    "/nothing",
)

server = server_fixture(with_executor=False)


async def get_as(server: InProcessServer, host: str, path: str = "/api/auth", **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await server.http.get(path, headers={"Host": host} | named)


@pytest.mark.parametrize("path", PATHS)
async def test_a_server_on_loopback_refuses_other_host_names(server: InProcessServer, path: str) -> None:
    assert_problem(await get_as(server, EVIL, path), 421, "misdirected_request")


@pytest.mark.parametrize("path", ["/api/threads", "/mcp"])
async def test_a_request_with_another_host_name_changes_nothing(server: InProcessServer, path: str) -> None:
    assert_problem(await server.http.post(path, json={}, headers={"Host": EVIL}), 421, "misdirected_request")


async def test_openais_clients_get_the_refusal_in_openais_format(server: InProcessServer) -> None:
    answer = await get_as(server, EVIL, "/v1/models")
    assert (answer.status_code, answer.json()["error"]["code"]) == (421, "misdirected_request")


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:8000", "khala.localhost"])
async def test_the_machines_own_names_are_accepted(server: InProcessServer, host: str) -> None:
    assert (await get_as(server, host)).status_code == 200


@pytest.mark.parametrize("path", HEALTH)
async def test_health_probes_are_answered_under_any_host_name(server: InProcessServer, path: str) -> None:
    assert (await get_as(server, "10.0.0.7:8000", path)).status_code == 200


async def test_a_socket_for_another_name_is_refused(server: InProcessServer) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with socket(server, additional_headers={"Host": EVIL}):
            pass
    response = refused.value.response
    assert response.status_code == 421
    assert response.headers["content-type"] == "application/problem+json"
    assert b'"misdirected_request"' in response.body
    async with socket(server):
        pass


async def test_two_host_headers_are_refused(server: InProcessServer) -> None:
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(b"GET /api/auth HTTP/1.1\r\nHost: localhost\r\nHost: rebinding.example\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(10):
        assert (await reader.read()).startswith(b"HTTP/1.1 421 ")
    writer.close()


async def test_only_the_public_url_and_configured_hosts_are_accepted_whatever_a_proxy_forwards(
    server: InProcessServer,
) -> None:
    url = server.database_url
    behind = {"KHALA_PUBLIC_URL": "https://chat.example", "KHALA_TRUSTED_PROXIES": "127.0.0.1"}
    async with khala(url, with_executor=False, **behind) as public:
        assert (await get_as(public, "chat.example")).status_code == 200
        assert (await get_as(public, EVIL)).status_code == 421
        assert (await get_as(public, EVIL, x_forwarded_host="chat.example")).status_code == 421
        assert (await get_as(public, "chat.example", x_forwarded_host=EVIL)).status_code == 200
    async with khala(url, with_executor=False, KHALA_HOSTS="*.chat.example", **behind) as named:
        assert (await get_as(named, "a.chat.example")).status_code == 200
        assert (await get_as(named, "chat.example")).status_code == 421


async def test_a_server_on_other_interfaces_accepts_every_host_until_one_is_configured(server: InProcessServer) -> None:
    url = server.database_url
    async with khala(url, with_executor=False, HOST="0.0.0.0") as open_to_all:
        assert (await get_as(open_to_all, "khala.local")).status_code == 200
    async with khala(url, with_executor=False, HOST="0.0.0.0", KHALA_HOSTS="khala.local") as told_its_name:
        assert (await get_as(told_its_name, "khala.local")).status_code == 200
        assert (await get_as(told_its_name, EVIL)).status_code == 421
