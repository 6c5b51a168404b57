"""Tokens of connected accounts: refreshed once, stored sealed, and sent to their service alone."""

import asyncio
from base64 import b64decode
from typing import Any

import httpx2
import pytest

from khala.domain.backoff import Backoff
from khala.domain.errors import Unavailable
from khala.domain.secret_box import SecretBox, SecretError
from khala.store.postgres.database import Database
from khala.store.tools import mcp_accounts
from khala.tools.mcp.accounts import account_sessions, account_tokens
from khala.tools.mcp.accounts.account_transport import AccountTransport
from khala.tools.mcp.accounts.revocations import TokenRevoker
from khala.tools.mcp.oauth import AuthorizationError
from khala.tools.mcp.oauth_config import McpOAuthConfig
from tests.support.connections import (
    KEYS,
    TOOL,
    called,
    config_of,
    connect,
    connection,
    listed_account,
    new_thread,
    servers_of,
    stored_account,
    tokens_of,
)
from tests.support.in_process import InProcessServer
from tests.support.mcp_accounts import PersonalServer
from tests.support.oauth import signed_in

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_two_processes_refresh_a_rotating_token_once(
    server: InProcessServer, personal: PersonalServer, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer = personal.issuer
    async with signed_in(server.url) as alice:
        issuer.lifetime = 30
        await connect(alice, personal, "carol")
        before = issuer.refreshes
        await tokens_of(store, personal, await stored_account(store, alice)).current()
        assert issuer.refreshes == before, "a short-lived token is not refreshed for each request"
        issuer.lifetime = 0  # So that a token is refreshed at once.
        with monkeypatch.context() as patch:
            patch.setattr(account_sessions, "MAX_SESSIONS", 0)  # The server opens no session that refreshes it.
            await connect(alice, personal, "carol")
        account = await stored_account(store, alice)
        issuer.lifetime, issuer.delay, before = 3600, 0.3, issuer.refreshes
        found = [tokens_of(store, personal, account) for _ in range(4)]
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
        account = await listed_account(store, alice)
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
        tokens = tokens_of(store, personal, account, wrong)
        assert issuer.access[(await tokens.current()).text].subject == "ivan"
        with pytest.raises(AuthorizationError, match="refuses Khala's request"):
            await tokens.renewed(account.version)
        assert (await connection(alice))["state"] == "connected"
        assert (await tokens_of(store, personal, account).renewed(account.version)).version == account.version + 1


async def test_a_refusal_with_status_200_ends_the_connection_at_once_or_after_a_few_attempts(
    server: InProcessServer, personal: PersonalServer, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer = personal.issuer
    async with signed_in(server.url) as alice:
        for ended in ({"error": "invalid_grant"}, {"error": "bad_refresh_token", "access_token": ""}):
            await connect(alice, personal, "oscar")
            account = await listed_account(store, alice)
            issuer.token_answer = ended
            with pytest.raises(AuthorizationError, match="not connected"):
                await tokens_of(store, personal, account).renewed(account.version)
            assert (await connection(alice))["state"] == "expired"
            issuer.token_answer = None
        await connect(alice, personal, "oscar")
        account, issuer.answered = await listed_account(store, alice), 0
        tokens = tokens_of(store, personal, account)
        for answer in ({"error": "temporarily_unavailable"}, {"ok": False, "error": "token_revoked"}):
            issuer.token_answer = answer
            with pytest.raises(AuthorizationError):
                await tokens.renewed(account.version)
        with pytest.raises(AuthorizationError, match="refuses Khala's request"):
            await tokens.renewed(account.version)
        assert issuer.answered == 2, "after a refusal, the issuer is asked again later"
        monkeypatch.setattr(account_tokens, "REFUSAL_BACKOFF", Backoff(first_seconds=0.0))
        tokens, issuer.token_answer = tokens_of(store, personal, account), {}
        for _ in range(account_tokens.MAX_REFUSALS - 1):
            with pytest.raises(AuthorizationError, match="refuses Khala's request"):
                await tokens.renewed(account.version)
        assert (await connection(alice))["state"] == "connected"
        with pytest.raises(AuthorizationError, match="not connected"):
            await tokens.renewed(account.version)
        assert (await connection(alice))["state"] == "expired"


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
        account = await listed_account(store, alice)
        monkeypatch.setattr(mcp_accounts, "replace_tokens", replace_later)
        token = await tokens_of(store, personal, account).renewed(account.version)
        assert (token.version, failures) == (account.version + 1, [])
        assert personal.issuer.access[token.text].subject == "judy"


async def test_tokens_are_stored_sealed_and_shown_nowhere(
    server: InProcessServer, personal: PersonalServer, store: Database, capfd: pytest.CaptureFixture[str]
) -> None:
    async with signed_in(server.url) as alice:
        await connect(alice, personal, "gwen")
        assert await called(await new_thread(alice), TOOL) == (True, "whoami for gwen")
        account = await stored_account(store, alice)
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
        account = await listed_account(store, alice)
        rotated = tokens_of(store, personal, account, keys=[new, old])
        assert (await rotated.current()).version == account.version
        renewed = await rotated.renewed(account.version)
        assert await tokens_of(store, personal, account, keys=[new]).current() == renewed
        with pytest.raises(AuthorizationError, match="can't be decrypted"):
            await tokens_of(store, personal, account).current()
        stored = await stored_account(store, alice)
        services, before = servers_of(store, personal)._servers, len(personal.issuer.revoked)
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
        tokens = tokens_of(store, personal, await listed_account(store, alice))
        transport = AccountTransport(httpx2.MockTransport(redirect), config_of(personal).servers["notes"], tokens)
        async with httpx2.AsyncClient(transport=transport, follow_redirects=True) as http:
            with pytest.raises(AuthorizationError, match="gets no token"):
                await http.post(personal.url)
    assert seen == [personal.url]
