"""Sign-in at a real OpenID Provider, from the browser's first click to its session."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from khala.store.postgres.database import Database
from tests.support.callers import person
from tests.support.client import client
from tests.support.frames import socket
from tests.support.in_process import InProcessServer
from tests.support.oidc.provider import AUDIENCE, CALLBACK, SECRET, RealProvider, parameter, running
from tests.support.ports import free_port
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

PASSWORD = "en taro adun"
PORT = free_port()
HOME = f"http://127.0.0.1:{PORT}"


@pytest.fixture(scope="module")
def real() -> Iterator[RealProvider]:
    with running(callbacks=(f"{HOME}/api/auth/oidc/callback", CALLBACK), signed_out=(f"{HOME}/",)) as provider:
        yield provider


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(postgres_url: str, template: str, real: RealProvider) -> AsyncIterator[InProcessServer]:
    settings = {
        "PORT": str(PORT), "KHALA_OIDC_ISSUER": real.issuer, "KHALA_OIDC_CLIENT_ID": "khala",
        "KHALA_OIDC_CLIENT_SECRET": SECRET, "KHALA_OIDC_AUDIENCE": AUDIENCE, "KHALA_OIDC_NAME": "Example",
    }  # fmt: skip
    async with shared(postgres_url, template, with_executor=False, **settings) as inside:
        yield inside


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def no_users(store: Database) -> None:
    """Delete all users: in each test the provider's three people sign in for the first time."""
    async with store.driver() as driver:
        await driver.execute("DELETE FROM users")


@contextlib.asynccontextmanager
async def browser(server: InProcessServer) -> AsyncIterator[httpx.AsyncClient]:
    async with client(server.url) as http:
        yield http


async def start_sign_in(http: httpx.AsyncClient, **query: Any) -> str:
    """The URL of the provider to which a sign-in redirects."""
    answer = await http.get("/api/auth/oidc/login", params=query)
    assert answer.status_code == 302, answer.text
    return str(answer.headers["location"])


async def sign_in(http: httpx.AsyncClient, real: RealProvider, login: str = "alice", **query: Any) -> httpx.Response:
    """The whole sign-in; returns the last response, which redirects to the page.

    Its headers are those of a browser that the provider has redirected.
    """
    back = await real.authorize(await start_sign_in(http, **query), login=login)
    answer = await http.get(back, headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})
    assert answer.status_code == 302, answer.text
    return answer


async def me(http: httpx.AsyncClient) -> dict[str, Any]:
    return dict((await http.get("/api/me")).raise_for_status().json())


async def register(http: httpx.AsyncClient, email: str) -> dict[str, Any]:
    body = {"email": email, "password": PASSWORD}
    return dict((await http.post("/api/auth/register", json=body)).raise_for_status().json())


async def test_a_browser_goes_to_the_provider_and_comes_back_signed_in(
    server: InProcessServer, real: RealProvider
) -> None:
    async with browser(server) as http:
        assert (await http.get("/api/auth")).json()["oidc"] == {"name": "Example"}
        first = await http.get("/api/auth/oidc/login", params={"returnTo": "/t/1?x=y#z"})
        cookie = first.headers["set-cookie"].lower()
        assert all(word in cookie for word in ("httponly", "samesite=lax", "path=/api/auth/oidc"))
        assert parameter(first.headers["location"], "code_challenge_method") == "S256"
        back = await real.authorize(first.headers["location"])
        last = await http.get(back)
        assert (last.status_code, last.headers["location"]) == (302, "/t/1?x=y#z")
        user = await me(http)
        assert (user["name"], user["email"], user["password"]) == ("Alice Example", "alice@example.org", False)
        assert user["identities"] == [{"issuer": real.issuer, "email": "alice@example.org"}]
        actions = [item["action"] for item in (await http.get("/api/me/audit")).json()["items"]]
        assert actions == ["signed_in", "registered"]


async def test_one_identity_is_one_user_and_another_is_another(server: InProcessServer, real: RealProvider) -> None:
    async with browser(server) as here, browser(server) as there, browser(server) as other:
        for http, login in ((here, "alice"), (there, "alice"), (other, "carol")):
            assert (await sign_in(http, real, login)).headers["location"] == "/"
        assert (await me(here))["id"] == (await me(there))["id"]
        assert (await me(other))["id"] != (await me(here))["id"]
        assert "email" not in await me(other)


async def test_signing_in_again_ends_the_browsers_previous_session(server: InProcessServer, real: RealProvider) -> None:
    async with browser(server) as http:
        await sign_in(http, real)
        before = http.cookies["khala_session"]
        await sign_in(http, real)
        old = {"Cookie": f"khala_session={before}"}
        assert (await server.http.get("/api/me", headers=old)).status_code == 401


async def test_an_equal_email_address_does_not_link_accounts(server: InProcessServer, real: RealProvider) -> None:
    async with browser(server) as local, browser(server) as http:
        mine = await register(local, "alice@example.org")
        await sign_in(http, real)
        assert (await me(http))["id"] != mine["id"]
        assert not (await me(local)).get("identities")


async def test_an_unverified_address_of_the_provider_is_not_stored_as_the_accounts(
    server: InProcessServer, real: RealProvider
) -> None:
    async with browser(server) as http:
        await sign_in(http, real, "bob")
        assert (await me(http)).get("email") is None


async def test_a_signed_in_user_links_an_identity_and_signs_in_by_it(
    server: InProcessServer, real: RealProvider
) -> None:
    login = "carol"
    async with browser(server) as http, browser(server) as later, browser(server) as other:
        mine = await register(http, f"{login}@example.com")
        session = http.cookies["khala_session"]
        assert (await sign_in(http, real, login, link="true")).headers["location"] == "/"
        assert http.cookies["khala_session"] == session
        assert [identity["issuer"] for identity in (await me(http))["identities"]] == [real.issuer]
        await sign_in(later, real, login)
        assert (await me(later))["id"] == mine["id"]
        stranger = await register(other, f"other-{login}@example.com")
        assert (await sign_in(other, real, login, link="true")).headers["location"] == "/?signin=conflict"
        assert (await me(other))["id"] == stranger["id"]
        assert not (await me(other)).get("identities")


async def test_linking_needs_a_session(server: InProcessServer) -> None:
    async with browser(server) as http:
        answer = await http.get("/api/auth/oidc/login", params={"link": "true"})
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")


async def test_an_identity_is_linked_only_to_the_account_that_started_the_sign_in(
    server: InProcessServer, real: RealProvider
) -> None:
    login = "carol"
    async with browser(server) as http:
        await register(http, f"{login}@example.com")
        back = await real.authorize(await start_sign_in(http, link="true"), login=login)
        await http.post("/api/auth/logout")
        await register(http, f"second-{login}@example.com")
        assert (await http.get(back)).headers["location"] == "/?signin=conflict"
        assert not (await me(http)).get("identities")


async def test_another_sites_page_cannot_start_linking(server: InProcessServer) -> None:
    async with browser(server) as http:
        await register(http, f"{uuid4().hex}@example.com")
        answer = await http.get(
            "/api/auth/oidc/login", params={"link": "true"}, headers={"Sec-Fetch-Site": "cross-site"}
        )
        assert answer.status_code in (401, 403)


async def test_a_login_that_another_browser_started_is_refused(server: InProcessServer, real: RealProvider) -> None:
    async with browser(server) as attacker, browser(server) as victim:
        back = await real.authorize(await start_sign_in(attacker))
        for _ in range(2):
            assert (await victim.get(back)).headers["location"] == "/?signin=invalid_input"
            assert "khala_session" not in victim.cookies
            await start_sign_in(victim)
        assert (await attacker.get(back)).headers["location"] == "/"
        assert (await me(attacker))["name"] == "Alice Example"


async def test_a_login_can_be_finished_only_once(server: InProcessServer, real: RealProvider) -> None:
    async with browser(server) as http:
        back = await real.authorize(await start_sign_in(http))
        state = {"Cookie": f"khala_oidc={parameter(back, 'state')}"}
        assert (await http.get(back)).headers["location"] == "/"
        again = await server.http.get(back, headers=state)
        assert again.headers["location"] == "/?signin=invalid_input"
        assert "khala_session" not in again.headers.get("set-cookie", "")


async def test_an_expired_login_is_refused(server: InProcessServer, real: RealProvider, store: Database) -> None:
    async with browser(server) as http:
        back = await real.authorize(await start_sign_in(http))
        async with store.driver() as driver:
            await driver.execute("UPDATE oidc_logins SET expires_at = now() - interval '1 second'")
        assert (await http.get(back)).headers["location"] == "/?signin=invalid_input"


async def test_state_and_the_session_are_kept_as_hashes(
    server: InProcessServer, real: RealProvider, store: Database
) -> None:
    async with browser(server) as http:
        url = await start_sign_in(http)
        async with store.driver() as driver:
            rows = await driver.fetch("SELECT oidc_logins::text AS whole FROM oidc_logins")
            assert not any(parameter(url, "state") in row["whole"] for row in rows)
        await http.get(await real.authorize(url))
        async with store.driver() as driver:
            rows = await driver.fetch("SELECT sessions::text AS whole FROM sessions")
        assert not any(http.cookies["khala_session"] in row["whole"] for row in rows)


@pytest.mark.parametrize(
    "query", ["", "state=x", "code=x", "code=x&state=x", "error=access_denied", "error=%00&code=x"]
)
async def test_an_invalid_callback_redirects_to_the_page_with_an_error(server: InProcessServer, query: str) -> None:
    async with browser(server) as http:
        await start_sign_in(http)
        answer = await http.get(f"/api/auth/oidc/callback?{query}")
        assert (answer.status_code, answer.headers["location"]) == (302, "/?signin=invalid_input")
        assert "khala_session" not in http.cookies


async def test_an_invalid_code_is_refused(server: InProcessServer) -> None:
    async with browser(server) as http:
        state = parameter(await start_sign_in(http), "state")
        answer = await http.get("/api/auth/oidc/callback", params={"code": "forged", "state": state})
        assert answer.headers["location"] == "/?signin=unauthorized"
        assert "khala_session" not in http.cookies


@pytest.mark.parametrize(
    "given",
    [
        "//evil.example", "https://evil.example", "/\\evil.example", "\\\\evil.example", "/\t/evil.example",
        "/\n/evil.example", "\t//evil.example", " //evil.example", "javascript:alert(1)", "evil.example", "",
        "///evil.example", "/x\\..\\evil", "/\x00", "/\r\nSet-Cookie: a=b", "http:/evil.example", "/" + "x" * 8192,
    ],
)  # fmt: skip
async def test_a_return_url_to_another_site_redirects_to_the_page(
    server: InProcessServer, real: RealProvider, given: str
) -> None:
    async with browser(server) as http:
        assert (await sign_in(http, real, returnTo=given)).headers["location"] == "/"


@pytest.mark.parametrize("given", ["/", "/t/1", "/?a=https://x.example", "/t/%2F%2Fx", "/t/☃", "/.//x"])
async def test_a_return_url_of_this_site_is_followed(server: InProcessServer, real: RealProvider, given: str) -> None:
    async with browser(server) as http:
        target = urlsplit(str(httpx.URL(HOME).join((await sign_in(http, real, returnTo=given)).headers["location"])))
        assert f"{target.scheme}://{target.netloc}" == HOME
        assert target.path == str(httpx.URL(HOME).join(given).path) or "%" in target.path


async def test_a_jwt_of_the_provider_is_the_same_user_over_rest_and_on_a_socket(
    server: InProcessServer, real: RealProvider
) -> None:
    async with browser(server) as http:
        await sign_in(http, real)
        user = await me(http)
    jwt = await real.access_token()
    headers = {"Authorization": f"Bearer {jwt}"}
    assert (await server.http.get("/api/me", headers=headers)).json()["id"] == user["id"]
    thread_id = (await server.http.post("/api/threads", json={}, headers=headers)).json()["thread"]["id"]
    subscribe = {"type": "subscribe", "threadId": thread_id}
    async with socket(server, additional_headers=headers) as feed:
        await feed.send(subscribe)
        assert (await feed.until("snapshot"))["threadId"] == thread_id
    async with socket(server) as feed:
        await feed.send(subscribe)
        assert (await feed.next())["code"] == "forbidden"
        await feed.send({"type": "authenticate", "token": jwt})
        assert await feed.next() == {"type": "authenticated", "userId": user["id"]}
        await feed.send(subscribe)
        assert (await feed.until("snapshot"))["threadId"] == thread_id


async def test_a_jwt_of_a_new_user_creates_the_account(server: InProcessServer, real: RealProvider) -> None:
    headers = {"Authorization": f"Bearer {await real.access_token(login='bob')}"}
    first = await server.http.get("/api/me", headers=headers)
    assert first.status_code == 200
    assert (await server.http.get("/api/me", headers=headers)).json() == first.json()


async def test_a_jwt_that_is_tampered_with_or_for_another_audience_is_unauthorized(
    server: InProcessServer, real: RealProvider
) -> None:
    jwt = await real.access_token()
    head, payload, signature = jwt.split(".")
    bent = [f"{head}.{payload}.{signature[:-8]}AAAAAAAA", f"{head}.{payload}.", f"{head}.{payload[::-1]}.{signature}"]
    for token in bent:
        answer = await server.http.get("/api/me", headers={"Authorization": f"Bearer {token}"})
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    async with socket(server) as feed:
        await feed.send({"type": "authenticate", "token": bent[0]})
        assert (await feed.next())["code"] == "unauthorized"


async def test_signing_out_returns_the_providers_end_session_url(server: InProcessServer, real: RealProvider) -> None:
    async with browser(server) as http:
        await sign_in(http, real)
        url = (await http.post("/api/auth/logout")).json()["endSessionUrl"]
        assert url.startswith(real.issuer)
        assert parameter(url, "post_logout_redirect_uri") == f"{HOME}/"
        assert parameter(url, "id_token_hint").count(".") == 2
        async with client() as there:
            assert (await there.get(url)).status_code == 200
        assert (await http.get("/api/me")).status_code == 401


async def test_an_account_from_the_provider_can_set_a_password_with_an_address(
    server: InProcessServer, real: RealProvider
) -> None:
    login = "carol"
    async with browser(server) as http, browser(server) as later:
        await sign_in(http, real, login)
        body = {"new": PASSWORD, "email": f"{login}@example.com"}
        assert (await http.post("/api/auth/password", json={"new": PASSWORD})).status_code == 400
        assert (await http.post("/api/auth/password", json=body)).status_code == 204
        signed = await later.post("/api/auth/login", json={"email": body["email"], "password": PASSWORD})
        assert signed.json()["id"] == (await me(http))["id"]


async def test_without_a_configured_provider_a_jwt_is_unauthorized(
    postgres_url: str, template: str, real: RealProvider
) -> None:
    async with shared(postgres_url, template, with_executor=False) as without:
        headers = {"Authorization": f"Bearer {await real.access_token()}"}
        assert (await without.http.get("/api/me", headers=headers)).status_code == 401
        database = Database(without.database_url)
        who = await person(database)
        await database.close()
        assert (await without.http.get("/api/me", headers=who.headers)).status_code == 200
