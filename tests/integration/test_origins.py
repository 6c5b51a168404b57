"""Requests by other sites' pages, proxies that are not trusted, and rate limits."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from websockets import InvalidStatus

from tests.support.client import client
from tests.support.frames import socket
from tests.support.in_process import InProcessServer, khala
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVIL, FRIEND = "https://evil.example", "https://friend.example"

server = server_fixture(with_executor=False, KHALA_ORIGINS=FRIEND)


@contextlib.asynccontextmanager
async def browser(server: InProcessServer) -> AsyncIterator[httpx.AsyncClient]:
    """A browser that is signed in."""
    async with client(server.url) as http:
        body = {"email": f"{uuid4().hex}@example.com", "password": "en taro adun"}
        (await http.post("/api/auth/register", json=body)).raise_for_status()
        yield http


CROSS = [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": EVIL}, {"Origin": "null"},
         {"Origin": EVIL, "Sec-Fetch-Site": "cross-site"}]  # fmt: skip


@pytest.mark.parametrize("headers", CROSS)
async def test_another_sites_page_changes_nothing_whatever_its_credentials(
    server: InProcessServer, headers: dict[str, str]
) -> None:
    thread = await server.thread()
    async with browser(server) as http:
        for method, path, body in (
            ("POST", "/api/threads", {}), ("POST", "/api/auth/logout", None), ("DELETE", "/api/me", None),
            ("POST", "/api/tokens", {"name": "mine"}), ("PATCH", f"/api/threads/{thread.id}", {"title": "Mine"}),
            ("POST", "/api/auth/login", {"email": "a@b.example", "password": "en taro adun"}),
        ):  # fmt: skip
            answer = await http.request(method, path, json=body, headers=headers | thread.headers)
            assert (path, answer.status_code, answer.json()["code"]) == (path, 403, "forbidden")
        assert (await http.get("/api/me")).status_code == 200
    assert "title" not in (await thread.snapshot())["thread"]


async def test_our_own_page_programs_and_configured_origins_are_accepted(server: InProcessServer) -> None:
    async with browser(server) as http:
        for headers in (
            {}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {"Origin": server.url},
            {"Origin": server.url, "Sec-Fetch-Site": "same-origin"},
            {"Origin": FRIEND, "Sec-Fetch-Site": "cross-site"}, {"Origin": FRIEND},
        ):  # fmt: skip
            answer = await http.post("/api/threads", json={}, headers=headers)
            assert (headers, answer.status_code) == (headers, 201)
            assert "anonKey" not in answer.json()


async def test_a_cookie_on_another_sites_read_request_is_ignored(server: InProcessServer) -> None:
    async with browser(server) as http:
        assert (await http.get("/api/me", headers={"Origin": EVIL})).status_code == 401
        assert (await http.get("/api/me", headers={"Origin": FRIEND})).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("mode", ["no-cors", "navigate"])
async def test_a_cookie_is_ignored_if_the_browser_names_another_site_without_an_origin(
    server: InProcessServer, site: str, mode: str
) -> None:
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
    async with browser(server) as http:
        for path in ("/api/me", "/api/threads", "/api/me/export", "/api/tools/mine", "/mcp-servers", "/v1/models"):
            answer = await http.get(path, headers=headers)
            assert (path, answer.status_code) == (path, 401)
        token = (await http.post("/api/tokens", json={"name": "mine"})).json()["token"]
        bearer = {"Authorization": f"Bearer {token}"}
        assert (await http.get("/api/threads", headers=headers | bearer)).status_code == 200


async def test_a_link_from_another_site_opens_the_page_and_the_pages_own_requests_are_signed_in(
    server: InProcessServer,
) -> None:
    arriving = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    async with browser(server) as http:
        assert (await http.get("/", headers=arriving)).status_code in (200, 503), "503 if the page is not built"
        for site in ({"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {}):
            assert (await http.get("/api/me", headers=site)).status_code == 200


async def test_allowing_any_origin_does_not_allow_cookies(server: InProcessServer) -> None:
    async with khala(server.database_url, with_executor=False, KHALA_ORIGINS="*") as anyone, browser(anyone) as http:
        for headers in ({"Origin": EVIL}, {"Origin": EVIL, "Sec-Fetch-Site": "cross-site"}):
            made = await anyone.http.post("/api/threads", json={}, headers=headers)
            assert made.status_code == 201
            assert (await http.post("/api/threads", json={}, headers=headers)).status_code == 403
            assert (await http.get("/api/me", headers=headers)).status_code == 401
        answer = await http.get("/api/threads", headers={"Origin": EVIL})
        assert answer.headers.get("access-control-allow-credentials") != "true"
        cookie = {"Cookie": f"khala_session={http.cookies['khala_session']}"}
        async with socket(anyone, origin=EVIL, additional_headers=cookie) as feed:
            await feed.send({"type": "watch"})
            assert (await feed.next())["code"] == "unauthorized"


@pytest.mark.parametrize("origin", [EVIL, "null", "https://friend.example.evil.example", "http://friend.example"])
async def test_a_socket_that_another_sites_page_opens_is_refused(server: InProcessServer, origin: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with socket(server, origin=origin):
            pass
    assert refused.value.response.status_code == 403


async def test_a_socket_of_our_own_page_a_configured_origin_or_a_program_uses_its_cookie(
    server: InProcessServer,
) -> None:
    async with browser(server) as http:
        cookie = {"Cookie": f"khala_session={http.cookies['khala_session']}"}
        for origin in (None, server.url, FRIEND):
            async with socket(server, origin=origin, additional_headers=cookie) as feed:
                await feed.send({"type": "watch"})
                assert (await feed.next())["type"] == "account"


async def recorded_network(http: httpx.AsyncClient, **headers: str) -> Any:
    """The network that the server records for a caller, as listed with the sessions."""
    body = {"email": f"{uuid4().hex}@example.com", "password": "en taro adun"}
    (await http.post("/api/auth/register", json=body, headers=headers)).raise_for_status()
    (session,) = (await http.get("/api/me/sessions", headers=headers)).json()["items"]
    return session.get("network")


async def test_a_forwarded_address_counts_from_a_trusted_proxy_only(server: InProcessServer) -> None:
    claimed = {"X-Forwarded-For": "198.51.100.7"}
    async with client(server.url) as http:
        assert await recorded_network(http, **claimed) == "127.0.0.0/24"
    async with khala(server.database_url, with_executor=False, KHALA_TRUSTED_PROXIES="127.0.0.0/8,::1") as behind:
        assert await recorded_network(behind.http, **claimed) == "198.51.100.0/24"
        assert await recorded_network(behind.http, **{"X-Forwarded-For": "6.6.6.6, 198.51.100.7, 127.0.0.9"}) == (
            "198.51.100.0/24"
        )
        assert await recorded_network(behind.http, **{"X-Forwarded-For": "[2001:db8::7]:99"}) == "2001:db8::/56"


async def test_a_forwarded_proto_of_an_untrusted_peer_makes_no_secure_cookie(server: InProcessServer) -> None:
    body = {"email": f"{uuid4().hex}@example.com", "password": "en taro adun"}
    async with client(server.url) as http:
        answer = await http.post("/api/auth/register", json=body, headers={"X-Forwarded-Proto": "https"})
        assert answer.headers["set-cookie"].startswith("khala_session=")


async def test_a_configured_limit_applies_to_loopback_too(server: InProcessServer) -> None:
    async with khala(server.database_url, with_executor=False, KHALA_REQUESTS_PER_MINUTE="5") as limited:
        answers = [await limited.http.get("/api/auth") for _ in range(6)]
        assert [answer.status_code for answer in answers] == [200] * 5 + [429]
        assert answers[-1].json()["code"] == "rate_limited"
        assert 0 < int(answers[-1].headers["retry-after"]) <= 12
        assert (await limited.http.get("/api/auth", headers={"X-Anon-Key": "k" * 40})).status_code == 429
        with pytest.raises(InvalidStatus) as refused:
            async with socket(limited):
                pass
        assert refused.value.response.status_code in (403, 429)
        assert (await limited.http.get("/api/health/live")).status_code == 200


async def test_a_caller_is_limited_by_credential_from_any_address(server: InProcessServer) -> None:
    settings = {"KHALA_REQUESTS_PER_MINUTE": "5", "KHALA_TRUSTED_PROXIES": "127.0.0.1"}
    async with khala(server.database_url, with_executor=False, **settings) as limited:
        for number in range(6):
            headers = {"X-Anon-Key": "k" * 40, "X-Forwarded-For": f"203.0.113.{number}"}
            answer = await limited.http.get("/api/auth", headers=headers)
            assert answer.status_code == (200 if number < 5 else 429)
        other = {"X-Anon-Key": "j" * 40, "X-Forwarded-For": "203.0.113.99"}
        assert (await limited.http.get("/api/auth", headers=other)).status_code == 200


async def requests_until_limited(server: InProcessServer, path: str, machine: str) -> int:
    """The number of requests for this path that one address can make before the server limits it."""
    for number in range(200):
        answer = await server.http.get(path, headers={"X-Forwarded-For": machine})
        if answer.status_code == 429:
            assert (answer.json()["code"], "retry-after" in answer.headers) == ("rate_limited", True)
            return number
    raise AssertionError(f"{path} is not limited")


async def test_the_page_and_its_files_are_limited_ten_times_as_high_and_the_document_like_any_request(
    server: InProcessServer,
) -> None:
    env = {"KHALA_REQUESTS_PER_MINUTE": "4", "KHALA_TRUSTED_PROXIES": "127.0.0.1"}
    files = ("/", "/t/01a1fbf2-37c2-7506-a120-9f98121662b0", "/web/nothing", "/preview", "/sw.js", "/console")
    async with khala(server.database_url, with_executor=False, **env) as limited:
        for number, path in enumerate(files):
            # A few more on a slow machine: the limit refills one request every 1.5 s, for other paths every 15 s.
            assert 40 <= await requests_until_limited(limited, path, f"203.0.113.{number}") < 70
        assert 4 <= await requests_until_limited(limited, "/api/openapi.json", "203.0.113.99") < 7


async def test_loading_the_page_uses_little_of_the_limit_of_its_requests(server: InProcessServer) -> None:
    async with khala(server.database_url, with_executor=False, KHALA_REQUESTS_PER_MINUTE="10") as limited:
        for number in range(20):
            assert (await limited.http.get(f"/web/assets/{number}.js")).status_code == 404
        assert [(await limited.http.get("/api/auth")).status_code for _ in range(8)] == [200] * 8
