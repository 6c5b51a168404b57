"""Connected services: people connect their accounts at an MCP server, and their runs call it with their tokens."""

import asyncio
import json
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import httpx2
import msgspec
import pytest
import pytest_asyncio
from mcp.shared.auth import OAuthMetadata

from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.backoff import Backoff
from khala.domain.errors import Unavailable
from khala.domain.secret_box import SecretBox, SecretError
from khala.domain.tools import ToolActor
from khala.store.postgres.database import Database
from khala.store.tools import mcp_accounts
from khala.store.tools.mcp_accounts import McpAccount, NewMcpAccount
from khala.tools.mcp import McpConfig, McpServerConfig
from khala.tools.mcp.accounts import account_tokens, account_tools
from khala.tools.mcp.accounts.account_server import AccountServer, allows_issuer
from khala.tools.mcp.accounts.account_servers import AccountServers
from khala.tools.mcp.accounts.account_tokens import AccountTokens
from khala.tools.mcp.accounts.account_transport import AccountTransport
from khala.tools.mcp.accounts.authorization_http import AuthorizationHttp, ClientCredentials, ConnectError
from khala.tools.mcp.accounts.client_metadata import client_document
from khala.tools.mcp.accounts.compose import open_account_servers
from khala.tools.mcp.accounts.discovery import discover
from khala.tools.mcp.accounts.registrations import ClientRegistrations
from khala.tools.mcp.accounts.revocations import TokenRevoker
from khala.tools.mcp.accounts.sealed_secrets import SealedTokens, opened, seal
from khala.tools.mcp.oauth import AuthorizationError
from khala.tools.mcp.oauth_config import McpOAuthConfig
from khala.tools.port import ToolError, UserAnswer, UserQuestion
from khala.tools.ssrf_guard import parse_networks
from tests.support.agents import act, call
from tests.support.callers import person
from tests.support.client import Thread, client
from tests.support.in_process import InProcessServer, khala
from tests.support.mcp_accounts import PersonalServer, personal_server, query
from tests.support.mcp_client import call_context, eventually
from tests.support.oauth import PASSWORD, signed_in
from tests.support.ports import free_port
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEYS = "a" * 43 + "="
BACK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
"""Headers of a browser that another site has redirected."""
TOOL, CONNECT = "notes__whoami", "notes__connect_account"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def personal() -> AsyncIterator[PersonalServer]:
    async with personal_server() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(
    postgres_url: str, template: str, personal: PersonalServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[InProcessServer]:
    config: Path = tmp_path_factory.mktemp("mcp") / "mcp.json"
    oauth = {"flow": "authorization_code", "issuer": personal.issuer.issuer}
    notes = {"url": personal.url, "oauth": oauth, "description": "Notes of people."}
    config.write_text(json.dumps({"mcpServers": {"notes": notes}}))
    settings = {"KHALA_MCP_CONFIG": str(config), "KHALA_SECRET_KEYS": KEYS, "KHALA_FETCH_ALLOW": "127.0.0.0/8"}
    async with shared(postgres_url, template, with_executor=True, **settings) as inside:
        yield inside


@pytest_asyncio.fixture(loop_scope="module")
async def store(server: InProcessServer) -> AsyncIterator[Database]:
    database = Database(server.database_url)
    yield database
    await database.close()


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def usual(personal: PersonalServer) -> None:
    issuer = personal.issuer
    issuer.error, issuer.returned_issuer, issuer.lifetime, issuer.delay = None, issuer.issuer, 3600, 0.0
    issuer.token_answer = None


async def begin(browser: httpx.AsyncClient, **body: Any) -> str:
    answer = await browser.post("/api/connections/notes", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["url"])


async def come_back(browser: httpx.AsyncClient, url: str) -> dict[str, str]:
    """The outcome that the page shows when the browser has come back."""
    answer = await browser.get(url, headers=BACK)
    assert answer.status_code == 302, answer.text
    return query(answer.headers["location"])


async def connect(browser: httpx.AsyncClient, personal: PersonalServer, person: str = "alice") -> None:
    outcome = await come_back(browser, await personal.allow(await begin(browser), person))
    assert outcome == {"connection": "connected", "service": "notes"}


async def connection(browser: httpx.AsyncClient) -> dict[str, Any]:
    [item] = (await browser.get("/api/connections")).raise_for_status().json()["items"]
    return dict(item)


async def new_thread(browser: httpx.AsyncClient) -> Thread:
    thread_id = str(ids.new())
    (await browser.post("/api/threads", json={"id": thread_id})).raise_for_status()
    thread = Thread(browser, thread_id, "")
    thread.headers = {}
    return thread


async def called(thread: Thread, tool: str) -> tuple[bool, str]:
    """Whether a call of the tool by a run succeeded, and its summary."""
    run = await act(thread, call(tool))
    await run.ended()
    [card] = await run.cards()
    return card["state"] == "completed", card.get("summary", "")


async def offered(browser: httpx.AsyncClient) -> set[str]:
    items = (await browser.get("/api/tools")).raise_for_status().json()["items"]
    return {item["name"] for item in items if item["name"].startswith("notes__")}


async def test_each_persons_runs_call_the_service_with_their_own_account(
    server: InProcessServer, personal: PersonalServer
) -> None:
    async with signed_in(server.url) as alice, signed_in(server.url) as bob:
        assert await offered(alice) == {CONNECT}
        assert (await connection(alice))["state"] == "disconnected"
        ok, told = await called(await new_thread(alice), CONNECT)
        assert not ok
        assert "Settings" in told
        await connect(alice, personal, "alice")
        shown = await connection(alice)
        assert (shown["state"], shown["scopes"]) == ("connected", ["read"])
        assert shown["issuer"] == personal.issuer.issuer
        assert await called(await new_thread(alice), TOOL) == (True, "whoami for alice")
        assert await offered(bob) == {CONNECT}, "the account of another person is offered to nobody"
        await connect(bob, personal, "bob")
        assert await called(await new_thread(bob), TOOL) == (True, "whoami for bob")
    asked = personal.issuer.asked[-1]
    assert asked.resource == personal.url
    back = [str(uri) for one in personal.issuer.clients.values() for uri in one.redirect_uris or ()]
    assert back.count(f"{server.url}/api/connections/notes/callback") == 1, "one registration serves all accounts"


async def test_in_a_shared_thread_the_account_is_that_of_the_person_who_asks(
    server: InProcessServer, personal: PersonalServer
) -> None:
    async with signed_in(server.url) as alice, signed_in(server.url) as bob, client(server.url) as guest:
        await connect(alice, personal, "alice")
        theirs = await new_thread(alice)
        bob_id = (await bob.get("/api/me")).json()["id"]
        (await alice.put(f"/api/threads/{theirs.id}/members/{bob_id}", json={"role": "editor"})).raise_for_status()
        (await bob.post(f"/api/threads/{theirs.id}/join", json={})).raise_for_status()
        of_bob = Thread(bob, theirs.id, "")
        of_bob.headers = {}
        ok, told = await called(of_bob, TOOL)
        assert not ok
        assert "isn't available" in told
        await connect(bob, personal, "bob")
        assert await called(of_bob, TOOL) == (True, "whoami for bob")
        assert await called(theirs, TOOL) == (True, "whoami for alice")
        unknown = await Thread.create(guest)
        listed = await guest.get("/api/tools", params={"threadId": unknown.id}, headers=unknown.headers)
        assert not [one for one in listed.json()["items"] if one["source"] == "notes"], "guests are offered nothing"
        assert (await guest.get("/api/connections")).status_code == 401


async def test_what_one_account_has_begun_no_other_completes_and_nobody_twice(
    server: InProcessServer, personal: PersonalServer
) -> None:
    async with signed_in(server.url) as alice, signed_in(server.url) as mallory, client(server.url) as guest:
        back = await personal.allow(await begin(alice, returnTo="/c/7?x=1#y"))
        before = len(personal.issuer.access)
        assert await come_back(mallory, back) == {"connection": "expired"}
        assert await come_back(guest, back) == {"connection": "unauthorized"}
        assert len(personal.issuer.access) == before, "the code was sent to nobody"
        answer = await alice.get(back, headers=BACK)
        assert answer.headers["location"] == "/c/7?x=1&connection=connected&service=notes#y"
        assert await come_back(alice, back) == {"connection": "expired"}, "the state is valid once"
        # The same code with a state of another attempt: the issuer has exchanged it already.
        replayed = back.replace(query(back)["state"], query(await begin(alice))["state"])
        assert await come_back(alice, replayed) == {"connection": "failed", "service": "notes"}
        assert (await connection(alice))["state"] == "connected"
        assert (await connection(mallory))["state"] == "disconnected"
        for elsewhere in ("https://evil.example/", "//evil.example", "/\\evil.example"):
            back = await personal.allow(await begin(alice, returnTo=elsewhere))
            assert (await alice.get(back, headers=BACK)).headers["location"].startswith("/?connection=connected")


async def test_a_mixed_up_or_denied_answer_exchanges_no_code(server: InProcessServer, personal: PersonalServer) -> None:
    issuer = personal.issuer
    async with signed_in(server.url) as alice:
        before = len(issuer.access)
        for returned in ("https://other.example", None):
            issuer.returned_issuer = returned
            outcome = await come_back(alice, await personal.allow(await begin(alice)))
            assert outcome == {"connection": "failed", "service": "notes"}
        issuer.returned_issuer = issuer.issuer
        back = await personal.allow(await begin(alice))
        token = (await alice.post("/api/tokens", json={"name": "CI", "scopes": ["read"]})).raise_for_status().json()
        with_token = await alice.get(back, headers=BACK | {"Authorization": f"Bearer {token['token']}"})
        assert query(with_token.headers["location"]) == {"connection": "forbidden"}, "a token completes nothing"
        outcome = await come_back(alice, back.replace("/notes/callback", "/other/callback"))
        assert outcome == {"connection": "failed", "service": "notes"}, "the answer is for another service"
        issuer.error = "access_denied"
        outcome = await come_back(alice, await personal.allow(await begin(alice)))
        assert outcome == {"connection": "denied", "service": "notes"}
        assert len(issuer.access) == before
        assert (await connection(alice))["state"] == "disconnected"
        other_site = await alice.get("/api/connections/notes/start", headers={"Sec-Fetch-Site": "cross-site"})
        assert other_site.status_code == 403, "a page of another site begins nothing"
        own_site = await alice.get("/api/connections/notes/start", headers={"Sec-Fetch-Site": "same-origin"})
        assert own_site.headers["location"].startswith(issuer.issuer)


async def test_metadata_lead_to_no_private_address_and_to_no_server_without_pkce(personal: PersonalServer) -> None:
    config = _config(personal).servers["notes"]
    http = AuthorizationHttp(config)
    open_to_all = AuthorizationHttp(_without_issuer(config), allow=parse_networks(["10.0.0.0/8"]))
    for address in (
        "https://127.0.0.1:99999/",
        "https://169.254.169.254/latest",
        "https://[::1]/",
        "file:///etc/passwd",
        "http://1.1.1.1/",
        "http://10.0.0.1/",
    ):
        with pytest.raises(ConnectError):
            await open_to_all.get(address)
    with pytest.raises(ConnectError, match="without https"):
        await open_to_all.check("http://10.0.0.1/token")
    with pytest.raises(ConnectError, match="not public"):
        await open_to_all.check("https://192.168.0.1/token")
    await open_to_all.check("https://10.0.0.1/token")
    usual = dict(personal.issuer.metadata)
    insecure = ("authorization_endpoint", "token_endpoint", "registration_endpoint", "revocation_endpoint")
    refused: list[tuple[dict[str, Any], str]] = [
        ({"issuer": "https://other.example"}, "name another one"),
        ({"issuer": f"{personal.issuer.issuer}/tenant"}, "name another one"),
        ({"code_challenge_methods_supported": ["plain"]}, "PKCE"),
        ({"revocation_endpoint": "https://10.0.0.1/revoke"}, "belongs neither"),
        *(({name: "http://login.example/x"}, "without https") for name in insecure),
    ]
    for change, message in refused:
        personal.issuer.metadata.update(change)
        try:
            with pytest.raises(ConnectError, match=message):
                await discover(config, http, None)
        finally:
            personal.issuer.metadata.update(usual)
    fixed = _config(personal, scope="write").servers["notes"]
    assert (await discover(fixed, http, "admin")).scope == "write", "a configured scope replaces those demanded"
    with pytest.raises(ConnectError, match="belongs neither"):
        await AuthorizationHttp(_config(personal, issuer="https://login.example").servers["notes"]).get(
            personal.issuer.issuer
        )


async def test_only_the_operator_chooses_an_issuer_on_another_origin(personal: PersonalServer, store: Database) -> None:
    notes = _config(personal).servers["notes"]
    allowed = parse_networks(["127.0.0.0/8"])
    for config, message in (
        (_without_issuer(notes), "another origin. The operator can allow it with issuer"),
        (_config(personal, issuer="https://login.example").servers["notes"], "its configured issuer"),
    ):
        with pytest.raises(ConnectError, match=message):
            await discover(config, AuthorizationHttp(config, allow=allowed), None)
        assert not allows_issuer(config, personal.issuer.issuer), "an account from before is used no more"
    port = free_port()
    async with personal_server((port, port)) as together:
        own = _without_issuer(_config(together).servers["notes"])
        found = await discover(own, AuthorizationHttp(own), None)
        assert str(found.metadata.issuer) == together.issuer.issuer
        assert allows_issuer(own, together.issuer.issuer)
    somebody = await person(store)
    with pytest.raises(Unavailable, match="no https address"):
        await _servers(store, personal).begin(somebody.caller, "notes", "http://chat.example", "/")


async def test_a_configured_client_goes_before_the_metadata_document_and_that_before_a_registration(
    personal: PersonalServer, store: Database
) -> None:
    home, box = "https://chat.example", SecretBox([b64decode(KEYS)])
    described = personal.issuer.metadata | {"client_id_metadata_document_supported": True}
    metadata = OAuthMetadata.model_validate(described)

    async def used(
        config: McpServerConfig, base_url: str, known: OAuthMetadata = metadata, public_url: str | None = None
    ) -> ClientCredentials:
        http = AuthorizationHttp(config, allow=parse_networks(["127.0.0.0/8"]))
        return await ClientRegistrations(store, box, public_url).client(config, http, known, base_url)

    notes = _config(personal).servers["notes"]
    own = McpOAuthConfig(flow="authorization_code", client_id="ours", client_secret="hush", issuer="https://x.example")
    configured = await used(msgspec.structs.replace(notes, oauth=own), home)
    assert (configured.id, configured.secret, configured.auth_method) == ("ours", "hush", "client_secret_basic")
    document = client_document(home, ["notes"])
    own_id = (await used(notes, home, public_url=home)).id
    assert own_id == document["client_id"] == f"{home}/api/connections/client-metadata"
    assert document["redirect_uris"] == [f"{home}/api/connections/notes/callback"]
    assert (await used(notes, home)).id in personal.issuer.clients, "there is no document without a public URL"
    registered = await used(notes, "http://127.0.0.1:1", public_url="http://127.0.0.1:1")
    assert registered.id in personal.issuer.clients, "an address without TLS is no client id"
    assert await used(notes, "http://127.0.0.1:1") == registered, "the registration is used again"
    closed = OAuthMetadata.model_validate({**personal.issuer.metadata, "registration_endpoint": None})
    with pytest.raises(ConnectError, match="clientId"):
        await used(notes, "http://127.0.0.1:2", closed)


async def test_two_processes_refresh_a_rotating_token_once(
    server: InProcessServer, personal: PersonalServer, store: Database
) -> None:
    issuer = personal.issuer
    async with signed_in(server.url) as alice:
        issuer.lifetime = 30
        await connect(alice, personal, "carol")
        before = issuer.refreshes
        await _tokens(store, personal, await _stored(store, alice)).current()
        assert issuer.refreshes == before, "a short-lived token is not refreshed for each request"
        issuer.lifetime = 0  # So that a token is refreshed at once.
        await connect(alice, personal, "carol")
        account = await _stored(store, alice)
        issuer.lifetime, issuer.delay, before = 3600, 0.3, issuer.refreshes
        found = [_tokens(store, personal, account) for _ in range(4)]
        tokens = await asyncio.gather(*(one.current() for one in found))
        assert len({token.text for token in tokens}) == 1
        assert (issuer.refreshes - before, issuer.reused) == (1, 0)
        assert await called(await new_thread(alice), TOOL) == (True, "whoami for carol")
        issuer.end_access_tokens()
        assert await called(await new_thread(alice), TOOL) == (True, "whoami for carol"), "a refused token is refreshed"
        assert (issuer.refreshes - before, issuer.reused) == (2, 0)


async def test_a_wrong_secret_of_a_configured_client_keeps_the_account_and_its_valid_token(
    server: InProcessServer, personal: PersonalServer, store: Database
) -> None:
    issuer = personal.issuer
    async with signed_in(server.url) as alice:
        await connect(alice, personal, "ivan")
        account = await _listed(store, alice)
        async with store.driver() as driver:  # A refresh is due, but the token is valid.
            soon = "UPDATE mcp_accounts SET access_expires_at = now() + interval '30 s' WHERE id = $1"
            await driver.execute(soon, account.id)
        wrong = McpOAuthConfig(
            flow="authorization_code",
            client_id=account.client_id,
            client_secret="wrong",
            auth_method="client_secret_post",
            issuer=issuer.issuer,
        )
        tokens = _tokens(store, personal, account, wrong)
        assert issuer.access[(await tokens.current()).text].subject == "ivan"
        with pytest.raises(AuthorizationError, match="refuses Khala's request"):
            await tokens.renewed(account.version)
        assert (await connection(alice))["state"] == "connected"
        assert (await _tokens(store, personal, account).renewed(account.version)).version == account.version + 1


async def test_a_refusal_with_status_200_ends_the_connection_at_once_or_after_a_few_attempts(
    server: InProcessServer, personal: PersonalServer, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer = personal.issuer
    async with signed_in(server.url) as alice:
        for ended in ({"error": "invalid_grant"}, {"error": "bad_refresh_token", "access_token": ""}):
            await connect(alice, personal, "oscar")
            account = await _listed(store, alice)
            issuer.token_answer = ended
            with pytest.raises(AuthorizationError, match="not connected"):
                await _tokens(store, personal, account).renewed(account.version)
            assert (await connection(alice))["state"] == "expired"
            issuer.token_answer = None
        await connect(alice, personal, "oscar")
        account, issuer.answered = await _listed(store, alice), 0
        tokens = _tokens(store, personal, account)
        for answer in ({"error": "temporarily_unavailable"}, {"ok": False, "error": "token_revoked"}):
            issuer.token_answer = answer
            with pytest.raises(AuthorizationError):
                await tokens.renewed(account.version)
        with pytest.raises(AuthorizationError, match="refuses Khala's request"):
            await tokens.renewed(account.version)
        assert issuer.answered == 2, "after a refusal, the issuer is asked again later"
        monkeypatch.setattr(account_tokens, "REFUSAL_BACKOFF", Backoff(first_seconds=0.0))
        tokens, issuer.token_answer = _tokens(store, personal, account), {}
        for _ in range(account_tokens.MAX_REFUSALS - 1):
            with pytest.raises(AuthorizationError, match="refuses Khala's request"):
                await tokens.renewed(account.version)
        assert (await connection(alice))["state"] == "connected"
        with pytest.raises(AuthorizationError, match="not connected"):
            await tokens.renewed(account.version)
        assert (await connection(alice))["state"] == "expired"


async def test_slow_services_delay_the_tools_of_others_by_one_common_limit(
    server: InProcessServer, personal: PersonalServer, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 2.0
    monkeypatch.setattr(account_tools, "FIRST_LIST_SECONDS", limit)
    async with silent_server() as silent, signed_in(server.url) as alice:
        await connect(alice, personal, "peter")
        account = await _listed(store, alice)
        notes = _config(personal).servers["notes"]
        slow = {name: msgspec.structs.replace(notes, name=name, url=silent) for name in ("first", "second", "third")}
        broken = msgspec.structs.replace(notes, name="broken", url=f"http://127.0.0.1:{free_port()}/mcp")
        others = slow | {"broken": broken}
        for config in others.values():
            await _connect_directly(store, Caller(user_id=account.user_id), config, account)
        async with store.driver() as driver:
            await driver.execute("UPDATE mcp_accounts SET tools_hash = NULL WHERE id = $1", account.id)
        services = open_account_servers(
            McpConfig(servers=others | {"notes": notes}), store, _box(), allow=(), public_url=None
        )
        running = asyncio.create_task(services.run())
        try:
            await eventually(lambda: services._sessions._group is not None)
            assert account.user_id is not None
            for max_seconds in (2 * limit, limit):
                began = time.monotonic()
                assert set(await services.tools.of_user(account.user_id)) == {TOOL, "notes__privileged"}
                assert time.monotonic() - began < max_seconds, "a slow service is waited for once"
        finally:
            running.cancel()
            await asyncio.wait({running})


async def test_a_refreshed_token_is_stored_when_the_database_is_back(
    server: InProcessServer, personal: PersonalServer, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, failures = mcp_accounts.replace_tokens, [Unavailable("The database is out of reach.")]

    async def replace_later(*args: Any) -> bool:
        if failures:
            raise failures.pop()
        return await replace(*args)

    async with signed_in(server.url) as alice:
        await connect(alice, personal, "judy")
        account = await _listed(store, alice)
        monkeypatch.setattr(mcp_accounts, "replace_tokens", replace_later)
        token = await _tokens(store, personal, account).renewed(account.version)
        assert (token.version, failures) == (account.version + 1, [])
        assert personal.issuer.access[token.text].subject == "judy"


async def test_without_a_database_sessions_stay_open(
    server: InProcessServer, personal: PersonalServer, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with signed_in(server.url) as alice:
        await connect(alice, personal, "kate")
        account, servers = await _listed(store, alice), _servers(store, personal)
        [service] = servers._servers.values()
        looks: list[int] = []

        async def unavailable(*given: Any) -> bool:
            looks.append(len(given))
            raise Unavailable("The database is out of reach.")

        monkeypatch.setattr(mcp_accounts, "set_tools", unavailable)
        monkeypatch.setattr(servers._revoker, "revoke_next", unavailable)
        running = asyncio.create_task(servers.run())
        try:
            await eventually(lambda: looks == [0])
            opened = await servers._sessions.open(service, account)
            assert opened.state.state == "ready", opened.state.error
            assert looks == [0, 5], "its tools are not stored"
            servers._revoker.wake()
            await eventually(lambda: looks == [0, 5, 0])
            assert not running.done()
            assert opened.state.state == "ready"
        finally:
            running.cancel()
            await asyncio.wait({running})


async def test_a_connection_that_its_issuer_ended_asks_to_be_connected_again(
    server: InProcessServer, personal: PersonalServer, store: Database
) -> None:
    async with signed_in(server.url) as alice:
        await connect(alice, personal, "dora")
        thread = await new_thread(alice)
        assert await called(thread, TOOL) == (True, "whoami for dora")
        personal.issuer._end("dora")
        ok, told = await called(thread, TOOL)
        assert not ok
        assert "Settings, under Connected services" in told
        assert (await connection(alice))["state"] == "expired"
        assert await offered(alice) == {CONNECT}
        with pytest.raises(AuthorizationError, match="not connected"):
            await _tokens(store, personal, await _stored(store, alice)).current()
        await connect(alice, personal, "dora")
        assert await called(thread, TOOL) == (True, "whoami for dora")


async def test_a_call_that_requires_more_permissions_has_them_asked_for(
    server: InProcessServer, personal: PersonalServer
) -> None:
    async with signed_in(server.url) as alice:
        await connect(alice, personal, "erin")
        thread = await new_thread(alice)
        ok, told = await called(thread, "notes__privileged")
        assert (ok, "further permissions" in told) == (False, True)
        assert await called(thread, TOOL) == (True, "whoami for erin"), "other calls go on"
        assert (await connection(alice))["needsScope"]
        await connect(alice, personal, "erin")
        assert await called(thread, "notes__privileged") == (True, "privileged for erin")
        assert not (await connection(alice))["needsScope"]


async def test_a_disconnected_account_and_a_deleted_one_are_used_no_more_and_revoked(
    server: InProcessServer, personal: PersonalServer, store: Database
) -> None:
    issuer = personal.issuer
    async with signed_in(server.url) as alice:
        await connect(alice, personal, "faye")
        thread = await new_thread(alice)
        assert await called(thread, TOOL) == (True, "whoami for faye")
        account = await _stored(store, alice)
        tokens = _tokens(store, personal, account)
        async with store.driver() as driver:
            for at, expected in (("now()", None), ("NULL", account.id)):
                await driver.execute(f"UPDATE users SET blocked_at = {at} WHERE id = $1", account.user_id)
                found = await mcp_accounts.read(driver, account.id)
                assert (found and found.id) == expected, "a blocked person's tokens are used by nobody"
            lease = await mcp_accounts.lease_refresh(driver, account.id, account.version)
            assert lease is not None
        assert (await alice.delete("/api/connections/notes")).status_code == 204
        async with store.driver() as driver:
            assert await mcp_accounts.claim_revocation(driver) is None, "the refreshed tokens are revoked, too"
            await mcp_accounts.release_refresh(driver, account.id, lease)
        # The server's own revoker may be first.
        await _servers(store, personal)._revoker.revoke_next()
        with pytest.raises(AuthorizationError):
            await tokens.current()
        assert not (await called(thread, TOOL))[0]
        await eventually(lambda: not [one for one in issuer.access.values() if one.subject == "faye"], seconds=10)
        assert (await alice.delete("/api/connections/notes")).status_code == 404
        await connect(alice, personal, "faye")
        revoked = len(issuer.revoked)
        (await alice.request("DELETE", "/api/me", json={"password": PASSWORD})).raise_for_status()
        await _servers(store, personal)._revoker.revoke_next()
        await eventually(lambda: len(issuer.revoked) == revoked + 1, seconds=10)
    async with store.driver() as driver:
        for _ in range(50):
            if await driver.fetchval("SELECT count(*) FROM mcp_accounts WHERE user_id IS NULL") == 0:
                return
            await asyncio.sleep(0.1)
    pytest.fail("a revoked row is left")


async def test_an_account_at_a_removed_service_can_be_disconnected(
    server: InProcessServer, personal: PersonalServer
) -> None:
    async with signed_in(server.url) as alice:
        await connect(alice, personal, "liam")
        async with khala(server.database_url, with_executor=False) as without:
            there = f"{without.url}/api/connections"
            [item] = (await alice.get(there)).raise_for_status().json()["items"]
            assert (item["name"], item["state"], item["tools"]) == ("notes", "removed", 0)
            assert (await alice.delete(f"{there}/notes")).status_code == 204
            assert (await alice.get(there)).json()["items"] == []
        assert (await connection(alice))["state"] == "disconnected"


async def test_tokens_are_stored_sealed_and_shown_nowhere(
    server: InProcessServer, personal: PersonalServer, store: Database, capfd: pytest.CaptureFixture[str]
) -> None:
    async with signed_in(server.url) as alice:
        await connect(alice, personal, "gwen")
        assert await called(await new_thread(alice), TOOL) == (True, "whoami for gwen")
        account = await _stored(store, alice)
        secrets = {token for token, one in personal.issuer.access.items() if one.subject == "gwen"}
        secrets |= {one.client_secret or "" for one in personal.issuer.clients.values()} - {""}
        listed = (await alice.get("/api/connections")).text
        async with store.driver() as driver:
            rows = [await driver.fetch(f"SELECT t::text FROM {table} t") for table in ("mcp_accounts", "mcp_clients")]
        logged = capfd.readouterr()
        for secret in secrets:
            assert secret not in listed
            assert secret not in str(rows)
            assert secret.encode().hex() not in str(rows)
            assert secret not in logged.out + logged.err
    box = SecretBox([b"k" * 32])
    with pytest.raises(SecretError):
        box.open(account.tokens, f"mcp_accounts\0{account.id}".encode())
    moved = box.seal(b"secret", b"here")
    with pytest.raises(SecretError):
        box.open(moved, b"there")
    assert SecretBox([b"n" * 32, b"k" * 32]).open(moved, b"here") == b"secret"


async def test_a_replaced_key_opens_stored_tokens_and_without_it_they_wait_to_be_revoked(
    server: InProcessServer, personal: PersonalServer, store: Database
) -> None:
    old, new = b64decode(KEYS), b"n" * 32
    async with signed_in(server.url) as alice:
        await connect(alice, personal, "mona")
        account = await _listed(store, alice)
        rotated = _tokens(store, personal, account, keys=[new, old])
        assert (await rotated.current()).version == account.version
        renewed = await rotated.renewed(account.version)
        assert await _tokens(store, personal, account, keys=[new]).current() == renewed
        with pytest.raises(AuthorizationError, match="can't be decrypted"):
            await _tokens(store, personal, account).current()
        stored = await _stored(store, alice)
        services, before = _servers(store, personal)._servers, len(personal.issuer.revoked)
        assert not await TokenRevoker(store, SecretBox([old]), services)._revoke(stored), (
            "another process may revoke it"
        )
        assert await TokenRevoker(store, SecretBox([new]), services)._revoke(stored)
        assert len(personal.issuer.revoked) == before + 1


async def test_a_redirect_of_the_service_gets_no_token(
    server: InProcessServer, personal: PersonalServer, store: Database
) -> None:
    seen: list[str] = []

    def redirect(request: httpx2.Request) -> httpx2.Response:
        seen.append(str(request.url))
        return httpx2.Response(307, headers={"Location": "http://127.0.0.1:1/mcp"})

    async with signed_in(server.url) as alice:
        await connect(alice, personal, "nora")
        tokens = _tokens(store, personal, await _listed(store, alice))
        transport = AccountTransport(httpx2.MockTransport(redirect), _config(personal).servers["notes"], tokens)
        async with httpx2.AsyncClient(transport=transport, follow_redirects=True) as http:
            with pytest.raises(AuthorizationError, match="gets no token"):
                await http.post(personal.url)
    assert seen == [personal.url]


async def test_a_run_asks_the_person_to_connect_and_goes_on(
    server: InProcessServer, personal: PersonalServer, store: Database
) -> None:
    async with signed_in(server.url) as alice:
        user_id = await _user_id(alice)
        tools = await _servers(store, personal, public_url=server.url).tools.of_user(user_id)
        asked: list[UserQuestion] = []

        async def ask(question: UserQuestion) -> UserAnswer:
            asked.append(question)
            await connect(alice, personal, "hana")
            return UserAnswer(action="accept")

        context = msgspec.structs.replace(call_context(), actor=ToolActor(owner_id=user_id, user_id=user_id), ask=ask)
        assert "is connected" in (await tools[CONNECT].run({}, context)).output
        assert asked[0].url == f"{server.url}/api/connections/notes/start"
        stranger = msgspec.structs.replace(context, actor=ToolActor(owner_id=ids.new(), user_id=ids.new()))
        with pytest.raises(ToolError, match="another account"):
            await tools[CONNECT].run({}, stranger)


def _config(personal: PersonalServer, issuer: str | None = None, scope: str | None = None) -> McpConfig:
    given = McpOAuthConfig(flow="authorization_code", issuer=issuer or personal.issuer.issuer, scope=scope)
    return McpConfig(servers={"notes": McpServerConfig(name="notes", url=personal.url, oauth=given)})


def _without_issuer(server: McpServerConfig) -> McpServerConfig:
    return msgspec.structs.replace(server, oauth=McpOAuthConfig(flow="authorization_code"))


def _box() -> SecretBox:
    return SecretBox([b64decode(KEYS)])


async def _connect_directly(store: Database, caller: Caller, server: McpServerConfig, like: McpAccount) -> None:
    """Connect the caller to a server with the tokens of another account."""
    account_id, url = ids.new(), server.url or ""
    tokens = opened(_box(), like.tokens, SealedTokens, "mcp_accounts", like.id)
    moved = msgspec.structs.replace(tokens, server=server.name, resource=url)
    account = NewMcpAccount(
        id=account_id,
        server=server.name,
        resource=url,
        issuer=like.issuer,
        client_id=like.client_id,
        tokens=seal(_box(), moved, "mcp_accounts", account_id),
        scope=None,
        access_expires_at=None,
    )
    await mcp_accounts.connect(store, caller, account)


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """The address of a server that accepts connections and never answers."""
    silent = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with silent:
        yield f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}/mcp"


def _servers(store: Database, personal: PersonalServer, public_url: str | None = None) -> AccountServers:
    """The services of another process."""
    allow = parse_networks(["127.0.0.0/8"])
    return open_account_servers(_config(personal), store, _box(), allow=allow, public_url=public_url)


def _tokens(
    store: Database,
    personal: PersonalServer,
    account: McpAccount,
    oauth: McpOAuthConfig | None = None,
    keys: Sequence[bytes] = (b64decode(KEYS),),
) -> AccountTokens:
    """The account's tokens in another process, which may have another configuration."""
    [server] = _servers(store, personal)._servers.values()
    assert isinstance(server, AccountServer)
    config = server.config if oauth is None else msgspec.structs.replace(server.config, oauth=oauth)
    return AccountTokens(store, SecretBox(list(keys)), config, server.http, account.id, set())


async def _user_id(browser: httpx.AsyncClient) -> UUID:
    return UUID((await browser.get("/api/me")).raise_for_status().json()["id"])


async def _stored(store: Database, browser: httpx.AsyncClient) -> McpAccount:
    async with store.driver() as driver:
        account = await mcp_accounts.find(driver, await _user_id(browser), "notes")
    assert account is not None
    return account


async def _listed(store: Database, browser: httpx.AsyncClient) -> McpAccount:
    """The account, once the server has stored its tools, and does nothing with it until the next call."""
    async with asyncio.timeout(10):
        while (account := await _stored(store, browser)).listed_at is None:
            await asyncio.sleep(0.05)
    return account
