"""Attacks on the OAuth server of MCP clients: none gets a token, or sends a person where they did not want to go."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import httpx
import pytest
import pytest_asyncio

from khala.api.accounts import sign_in_throttle
from khala.api.oauth.forms import MAX_FORM_BYTES
from khala.domain.errors import RateLimited
from khala.store.accounts import oauth_clients, oauth_grants
from khala.store.postgres.database import Database
from tests.support.callers import person
from tests.support.client import client
from tests.support.in_process import InProcessServer
from tests.support.oauth import (
    HIDDEN,
    REDIRECT,
    TestClient,
    bearer,
    consent_form,
    decide,
    grant,
    register,
    signed_in,
)  # fmt: skip
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}

server = server_fixture(with_executor=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(server: InProcessServer) -> AsyncIterator[httpx.AsyncClient]:
    async with signed_in(server.url) as http:
        yield http


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(server: InProcessServer) -> TestClient:
    return await register(server.http, server.url)


async def token(server: InProcessServer, form: dict[str, str]) -> tuple[int, str | None]:
    """The status of the token endpoint, and its error."""
    answer = await server.http.post("/oauth/token", data=form)
    assert answer.headers["cache-control"] == "no-store"
    return answer.status_code, answer.json().get("error")


async def mcp_status(server: InProcessServer, access_token: str, path: str = "/mcp") -> int:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    headers = {"Accept": "application/json, text/event-stream"} | bearer(access_token)
    return (await server.http.post(path, json=body, headers=headers)).status_code


@pytest.mark.parametrize(
    "change",
    [
        {"client_id": "another"},
        {"redirect_uri": "http://127.0.0.1:4567/other"},
        {"redirect_uri": "http://127.0.0.1:4568/callback"},
        {"code_verifier": "b" * 43},
        {"code_verifier": "a" * 42},
        {"code_verifier": None},
        {"resource": "https://other.example.com/mcp"},
        {"code": "khala_code_a.b"},
        {"code": "nonsense"},
        {"grant_type": "client_credentials"},
    ],
)
async def test_a_code_is_of_no_use_to_others(
    server: InProcessServer, browser: httpx.AsyncClient, program: TestClient, change: dict[str, str | None]
) -> None:
    code = (await decide(browser, program.query()))["code"]
    if change.get("client_id") is not None:
        change = {"client_id": (await register(server.http, server.url)).id}
    status, error = await token(server, program.code_form(code, **change))
    assert (status, error) == (400, _expected(change))
    if "code" not in change:
        assert await token(server, program.code_form(code)) == (200, None), "the client itself may still use it"


def _expected(change: dict[str, str | None]) -> str:
    if None in change.values():
        return "invalid_request"
    return "unsupported_grant_type" if "grant_type" in change else "invalid_grant"


async def test_a_code_that_is_used_again_ends_the_access(
    server: InProcessServer, browser: httpx.AsyncClient, program: TestClient
) -> None:
    code = (await decide(browser, program.query()))["code"]
    tokens = (await server.http.post("/oauth/token", data=program.code_form(code))).json()
    assert await mcp_status(server, tokens["access_token"]) == 200
    assert await token(server, program.code_form(code)) == (400, "invalid_grant")
    assert await mcp_status(server, tokens["access_token"]) == 401
    assert await token(server, program.refresh_form(tokens["refresh_token"])) == (400, "invalid_grant")


async def test_a_code_and_a_token_expire(
    server: InProcessServer, browser: httpx.AsyncClient, program: TestClient, store: Database
) -> None:
    code = (await decide(browser, program.query()))["code"]
    async with store.driver() as driver:
        longest = await driver.fetchval(
            "SELECT max(expires_at - created_at) FROM oauth_grants WHERE access_hash IS NULL"
        )
        await driver.execute("UPDATE oauth_grants SET expires_at = now()")
    assert longest <= oauth_grants.CODE_LIFETIME
    assert await token(server, program.code_form(code)) == (400, "invalid_grant")
    tokens = await grant(browser, program)
    assert tokens["expires_in"] <= 3600
    async with store.driver() as driver:
        await driver.execute("UPDATE oauth_grants SET access_expires_at = now()")
    assert await mcp_status(server, tokens["access_token"]) == 401
    async with store.driver() as driver:
        await driver.execute("UPDATE oauth_grants SET expires_at = now()")
    assert await token(server, program.refresh_form(tokens["refresh_token"])) == (400, "invalid_grant")


async def test_a_refresh_token_that_is_used_again_ends_the_access(
    server: InProcessServer, browser: httpx.AsyncClient, program: TestClient
) -> None:
    first = await grant(browser, program)
    other = await register(server.http, server.url)
    assert (await token(server, other.refresh_form(first["refresh_token"]))) == (400, "invalid_grant")
    second = (await server.http.post("/oauth/token", data=program.refresh_form(first["refresh_token"]))).json()
    for tokens in (first, second):
        assert await mcp_status(server, tokens["access_token"]) == 200, "calls under way may end"
    assert await token(server, program.refresh_form(first["refresh_token"])) == (400, "invalid_grant")
    for tokens in (first, second):
        assert await mcp_status(server, tokens["access_token"]) == 401
    assert await token(server, program.refresh_form(second["refresh_token"])) == (400, "invalid_grant")
    actions = [entry["action"] for entry in (await browser.get("/api/me/audit")).json()["items"]]
    assert actions[0] == "app_access_reused"


@pytest.mark.parametrize("kind", ["refresh", "code"])
async def test_of_concurrent_exchanges_at_most_one_succeeds(
    server: InProcessServer, browser: httpx.AsyncClient, program: TestClient, kind: str
) -> None:
    if kind == "refresh":
        form = program.refresh_form((await grant(browser, program))["refresh_token"])
    else:
        form = program.code_form((await decide(browser, program.query()))["code"])
    answers = await asyncio.gather(*(server.http.post("/oauth/token", data=form) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [200, *[400] * 7]
    [good] = [answer.json() for answer in answers if answer.status_code == 200]
    assert await mcp_status(server, good["access_token"]) == 401, "two parties have the secret"


async def test_an_access_token_is_valid_only_over_mcp(
    server: InProcessServer, browser: httpx.AsyncClient, program: TestClient
) -> None:
    headers = bearer((await grant(browser, program))["access_token"])
    for method, path in (("GET", "/api/me"), ("GET", "/api/grants"), ("GET", "/groups"), ("POST", "/api/threads")):
        assert (await server.http.request(method, path, headers=headers)).status_code == 401, path
    assert (await server.http.get("/v1/models", headers=headers)).status_code == 401
    assert (await server.http.get("/v1/stream/x", headers=headers)).status_code == 401


async def test_a_token_is_for_the_address_that_it_was_asked_for(
    server: InProcessServer, browser: httpx.AsyncClient, program: TestClient
) -> None:
    access_token = (await grant(browser, program))["access_token"]
    async with client(server.url.replace("127.0.0.1", "localhost")) as http:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        headers = {"Accept": "application/json, text/event-stream"} | bearer(access_token)
        assert (await http.post("/mcp", json=body, headers=headers)).status_code == 401


@pytest.mark.parametrize(
    "change",
    [
        {"redirect_uri": "https://evil.example.com/callback"},
        {"redirect_uri": "http://127.0.0.1:4567/callback/../other"},
        {"redirect_uri": "http://127.0.0.1@evil.example.com/callback"},
        {"redirect_uri": "http://evil@127.0.0.1:4567/callback"},
        {"redirect_uri": "http://127.0.0.1.evil.example.com/callback"},
        {"redirect_uri": "http://localhost:4567/callback"},
        {"redirect_uri": "javascript:alert(1)"},
        {"redirect_uri": None},
        {"client_id": "no such client"},
        {"client_id": "\0"},
        {"client_id": None},
    ],
)
async def test_an_unregistered_redirect_uri_gets_an_error_page_and_no_redirect(
    server: InProcessServer, browser: httpx.AsyncClient, program: TestClient, change: dict[str, str | None]
) -> None:
    query = program.query(**change)
    fields = await consent_form(browser, program.query()) | {"decision": "allow"}
    attempts = [
        await browser.get(f"/oauth/authorize?{urlencode(query)}"),
        await server.http.get(f"/oauth/authorize?{urlencode(query)}"),
        await browser.post("/oauth/authorize", data=query | {"proof": fields["proof"], "decision": "allow"}),
    ]
    for answer in attempts:
        assert answer.status_code == 400
        assert "location" not in answer.headers
        assert "href" not in answer.text


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"code_challenge_method": None}, "invalid_request"),
        ({"code_challenge": None}, "invalid_request"),
        ({"code_challenge": "short"}, "invalid_request"),
        ({"resource": None}, "invalid_request"),
        ({"resource": "https://other.example.com/mcp"}, "invalid_target"),
        ({"resource": "{url}/mcp/no-such-group"}, "invalid_target"),
        ({"resource": "{url}/api"}, "invalid_target"),
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"scope": "admin"}, "invalid_scope"),
        ({"state": "x" * 2049}, "invalid_request"),
    ],
)
async def test_an_invalid_request_is_shown_and_sent_back_only_by_a_click(
    server: InProcessServer, browser: httpx.AsyncClient, program: TestClient, change: dict[str, Any], error: str
) -> None:
    change = {name: value and value.format(url=server.url) for name, value in change.items()}
    answer = await browser.get(f"/oauth/authorize?{urlencode(program.query(**change))}")
    assert (answer.status_code, "location" in answer.headers) == (400, False)
    [link] = re.findall(r'href="([^"]+)"', answer.text)
    assert link.startswith(f"{REDIRECT}?error={error}&amp;")
    assert f"iss={server.url.replace(':', '%3A').replace('/', '%2F')}" in link


async def test_the_answer_has_the_state_and_the_issuer(
    server: InProcessServer, browser: httpx.AsyncClient, program: TestClient
) -> None:
    allowed = await decide(browser, program.query())
    assert (allowed["state"], allowed["iss"], "error" in allowed) == ("s t/a+t&e", server.url, False)
    denied = await decide(browser, program.query(), decision="deny")
    assert denied == {"error": "access_denied", "state": "s t/a+t&e", "iss": server.url}
    any_port = await decide(browser, program.query(redirect_uri="http://127.0.0.1:9/callback"))
    assert "code" in any_port, "a loopback redirect has any port"
    assert "state" not in await decide(browser, program.query(state=None))


async def test_only_the_form_of_the_same_session_and_request_counts(
    server: InProcessServer, browser: httpx.AsyncClient, program: TestClient, store: Database
) -> None:
    fields = await consent_form(browser, program.query()) | {"decision": "allow"}
    async with signed_in(server.url) as other:
        theirs = await consent_form(other, program.query()) | {"decision": "allow"}
    forged: list[tuple[dict[str, str], dict[str, str], int]] = [
        (theirs, SAME_ORIGIN, 403),
        ({**fields, "proof": ""}, SAME_ORIGIN, 403),
        ({name: value for name, value in fields.items() if name != "proof"}, SAME_ORIGIN, 403),
        ({**fields, "scope": "khala:write"}, SAME_ORIGIN, 403),
        ({**fields, "resource": f"{server.url}/mcp/files"}, SAME_ORIGIN, 403),
        (fields, {"Sec-Fetch-Site": "cross-site"}, 403),
        (fields, {"Origin": "https://evil.example.com"}, 403),
        ({**fields, "decision": ""}, SAME_ORIGIN, 400),
    ]
    for form, headers, status in forged:
        answer = await browser.post("/oauth/authorize", data=form, headers=headers)
        assert (answer.status_code, "location" in answer.headers) == (status, False), form
    somebody = await person(store)
    by_token = await server.http.post("/oauth/authorize", data=fields, headers=SAME_ORIGIN | somebody.headers)
    assert by_token.status_code == 403, "a program cannot consent"
    twice = urlencode(fields) + "&client_id=other"
    form_type = {"Content-Type": "application/x-www-form-urlencoded"} | SAME_ORIGIN
    assert (await browser.post("/oauth/authorize", content=twice, headers=form_type)).status_code == 400


async def test_a_session_that_has_ended_allows_nothing(server: InProcessServer, program: TestClient) -> None:
    async with signed_in(server.url) as http:
        fields = await consent_form(http, program.query()) | {"decision": "allow"}
        (await http.post("/api/auth/logout")).raise_for_status()
        answer = await http.post("/oauth/authorize", data=fields, headers=SAME_ORIGIN)
        assert answer.status_code == 403


async def test_without_a_session_the_person_signs_in_and_comes_back(
    server: InProcessServer, program: TestClient
) -> None:
    query = program.query(scope="khala:read")
    answer = await server.http.get(f"/oauth/authorize?{urlencode(query)}")
    assert answer.status_code == 302
    location = urlsplit(answer.headers["location"])
    assert (location.netloc, location.path) == ("", "/")
    back = urlsplit(unquote(location.query.removeprefix("continue=")))
    assert back.path == "/oauth/authorize"
    assert {name: values[0] for name, values in parse_qs(back.query).items()} == query


async def test_the_consent_page_cannot_be_framed_or_run_scripts(
    server: InProcessServer, browser: httpx.AsyncClient
) -> None:
    hostile = await register(server.http, server.url, client_name='<script>alert(1)</script>"\u202e', logo_uri="x")
    for path in (f"/oauth/authorize?{urlencode(hostile.query(state='<b>'))}", "/oauth/authorize"):
        page = await browser.get(path, headers={"Sec-Fetch-Site": "cross-site"})
        policy = page.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert (page.headers["x-frame-options"], page.headers["cache-control"]) == ("DENY", "no-store")
        assert not any(hostile in page.text for hostile in ("<script", "\u202e", "<b>"))
    shown = await browser.get(f"/oauth/authorize?{urlencode(hostile.query())}")
    assert "form-action 'self' http://127.0.0.1:4567;" in shown.headers["content-security-policy"]
    assert "a program on this computer" in shown.text
    assert HIDDEN.search(shown.text)


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ({"redirect_uris": ["javascript:alert(1)"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["data:text/html,x"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["http://example.com/callback"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://example.com/callback#x"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://user@example.com/callback"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https:///callback"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["/callback"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://example.com/a b"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://example.com/" + "x" * 2048]}, "invalid_redirect_uri"),
        ({"redirect_uris": []}, "invalid_redirect_uri"),
        ({"redirect_uris": [REDIRECT] * 11}, "invalid_redirect_uri"),
        ({"redirect_uris": REDIRECT}, "invalid_client_metadata"),
        ({}, "invalid_client_metadata"),
        ({"redirect_uris": [REDIRECT], "grant_types": ["client_credentials"]}, "invalid_client_metadata"),
        ([], "invalid_client_metadata"),
    ],
)
async def test_invalid_metadata_of_a_client_are_refused(server: InProcessServer, metadata: Any, error: str) -> None:
    answer = await server.http.post("/oauth/register", json=metadata)
    assert (answer.status_code, answer.json()["error"]) == (400, error)


async def test_web_and_native_apps_may_register(server: InProcessServer) -> None:
    uris = ["https://app.example.com/callback", "http://localhost/callback", "http://[::1]:80/x", "com.example.app:/x",
            "cursor://anysphere.cursor-mcp/oauth/callback"]  # fmt: skip
    body = {"redirect_uris": uris, "client_name": " ", "token_endpoint_auth_method": "client_secret_basic"}
    answer = await server.http.post("/oauth/register", json=body)
    assert answer.status_code == 201
    made = answer.json()
    assert (made["redirect_uris"], made["token_endpoint_auth_method"]) == (uris, "none")
    assert "client_secret" not in made
    assert made["client_name"] == "Unnamed app"


async def test_registrations_are_bounded(
    server: InProcessServer, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = await server.http.post("/oauth/register", json={"redirect_uris": [REDIRECT], "x": "y" * (1 << 20)})
    assert large.status_code == 413
    monkeypatch.setattr(oauth_clients, "MAX_CLIENTS", 0)
    full = await server.http.post("/oauth/register", json={"redirect_uris": [REDIRECT]})
    assert (full.status_code, "retry-after" in full.headers) == (503, True)
    assert (await server.http.post("/oauth/token", data={"code": "x" * MAX_FORM_BYTES})).status_code == 413
    for _ in range(sign_in_throttle.MAX_CLIENTS[3600]):
        await sign_in_throttle.count_client(store, "203.0.113.0/24")
    with pytest.raises(RateLimited):
        await sign_in_throttle.count_client(store, "203.0.113.0/24")
    await sign_in_throttle.count_client(store, "198.51.100.0/24")
    for _ in range(sign_in_throttle.MAX_DOCUMENTS[3600]):
        await sign_in_throttle.count_document(store, "203.0.113.0/24")
    with pytest.raises(RateLimited):
        await sign_in_throttle.count_document(store, "203.0.113.0/24")


async def test_a_client_ends_its_own_access_and_no_other(
    server: InProcessServer, browser: httpx.AsyncClient, program: TestClient
) -> None:
    other = await register(server.http, server.url)
    for name in ("access_token", "refresh_token"):
        tokens = await grant(browser, program)
        forms = [
            {"token": tokens[name], "client_id": other.id},
            {"token": tokens[name] + "x", "client_id": program.id},
            {"token": "nonsense", "client_id": program.id},
        ]
        for form in forms:
            assert (await server.http.post("/oauth/revoke", data=form)).status_code == 200
        assert await mcp_status(server, tokens["access_token"]) == 200
        form = {"token": tokens[name], "client_id": program.id}
        assert (await server.http.post("/oauth/revoke", data=form)).status_code == 200
        assert await mcp_status(server, tokens["access_token"]) == 401


async def test_only_the_account_itself_sees_and_ends_its_grants(
    server: InProcessServer, browser: httpx.AsyncClient, program: TestClient
) -> None:
    tokens = await grant(browser, program)
    listed = (await browser.get("/api/grants")).json()["items"]
    assert listed[0]["clientId"] == program.id
    async with signed_in(server.url) as other:
        assert (await other.get("/api/grants")).json()["items"] == []
        assert (await other.delete(f"/api/grants/{listed[0]['id']}")).status_code == 404
    assert await mcp_status(server, tokens["access_token"]) == 200
    assert (await browser.delete(f"/api/grants/{listed[0]['id']}")).status_code == 204
    assert await mcp_status(server, tokens["access_token"]) == 401


async def test_no_secret_is_stored(
    server: InProcessServer, browser: httpx.AsyncClient, program: TestClient, store: Database
) -> None:
    code = (await decide(browser, program.query()))["code"]
    tokens = (await server.http.post("/oauth/token", data=program.code_form(code))).json()
    async with store.driver() as driver:
        rows = await driver.fetch("SELECT oauth_grants::text AS whole FROM oauth_grants")
        rows += await driver.fetch("SELECT audit::text AS whole FROM audit")
    stored = "".join(row["whole"] for row in rows)
    for secret in (code, tokens["access_token"], tokens["refresh_token"]):
        for part in re.split(r"_(?=[^_]*\.)|\.", secret):
            assert part not in stored or len(part) < 20


async def test_an_account_has_at_most_a_hundred_grants(
    server: InProcessServer, program: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oauth_grants, "DELETE_OLDEST", oauth_grants.DELETE_OLDEST.replace("100", "2"))
    async with signed_in(server.url) as http:
        tokens = [await grant(http, program) for _ in range(3)]
        statuses = [await mcp_status(server, each["access_token"]) for each in tokens]
        assert statuses == [401, 200, 200]


async def test_deleting_the_account_ends_the_access(server: InProcessServer, program: TestClient) -> None:
    async with signed_in(server.url) as http:
        tokens = await grant(http, program)
        deleted = await http.request("DELETE", "/api/me", json={"password": "en taro adun"})
        assert deleted.status_code == 204
        assert await mcp_status(server, tokens["access_token"]) == 401
        assert await token(server, program.refresh_form(tokens["refresh_token"])) == (400, "invalid_grant")
