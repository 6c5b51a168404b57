"""People who connect their accounts at a service, and what the accounts are in another process."""

import asyncio
from base64 import b64decode
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import httpx
import msgspec

from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.secret_box import SecretBox
from khala.store.postgres.database import Database
from khala.store.tools import mcp_accounts
from khala.store.tools.mcp_accounts import McpAccount, NewMcpAccount
from khala.tools.mcp import McpConfig, McpServerConfig
from khala.tools.mcp.accounts.account_server import AccountServer
from khala.tools.mcp.accounts.account_servers import AccountServers
from khala.tools.mcp.accounts.account_tokens import AccountTokens
from khala.tools.mcp.accounts.compose import open_account_servers
from khala.tools.mcp.accounts.sealed_secrets import SealedTokens, opened, seal
from khala.tools.mcp.oauth_config import McpOAuthConfig
from khala.tools.ssrf_guard import parse_networks
from tests.support.agents import act, call
from tests.support.client import Thread
from tests.support.mcp_accounts import PersonalServer, query

KEYS = "a" * 43 + "="
BACK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
"""Headers of a browser that another site has redirected."""
TOOL, CONNECT = "notes__whoami", "notes__connect_account"


async def begin(browser: httpx.AsyncClient, **body: Any) -> str:
    """Begin to connect; returns the address at the issuer to which the browser is sent."""
    answer = await browser.post("/api/connections/notes", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["url"])


async def come_back(browser: httpx.AsyncClient, url: str) -> dict[str, str]:
    """The outcome that the page shows when the browser has come back."""
    answer = await browser.get(url, headers=BACK)
    assert answer.status_code == 302, answer.text
    return query(answer.headers["location"])


async def connect(browser: httpx.AsyncClient, personal: PersonalServer, person: str = "alice") -> None:
    """Connect the account of this person at the service."""
    outcome = await come_back(browser, await personal.allow(await begin(browser), person))
    assert outcome == {"connection": "connected", "service": "notes"}


async def connection(browser: httpx.AsyncClient) -> dict[str, Any]:
    """The service as the settings list it."""
    [item] = (await browser.get("/api/connections")).raise_for_status().json()["items"]
    return dict(item)


async def new_thread(browser: httpx.AsyncClient) -> Thread:
    """A new thread of the account."""
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
    """The names of the service's tools that the account is offered."""
    items = (await browser.get("/api/tools")).raise_for_status().json()["items"]
    return {item["name"] for item in items if item["name"].startswith("notes__")}


def config_of(personal: PersonalServer, issuer: str | None = None, scope: str | None = None) -> McpConfig:
    """The operator's configuration of the service."""
    given = McpOAuthConfig(flow="authorization_code", issuer=issuer or personal.issuer.issuer, scope=scope)
    return McpConfig(servers={"notes": McpServerConfig(name="notes", url=personal.url, oauth=given)})


def without_issuer(server: McpServerConfig) -> McpServerConfig:
    """The same configuration, in which the operator has not chosen an issuer."""
    return msgspec.structs.replace(server, oauth=McpOAuthConfig(flow="authorization_code"))


def secret_box() -> SecretBox:
    """The box with the key of the server under test."""
    return SecretBox([b64decode(KEYS)])


async def connect_directly(store: Database, caller: Caller, server: McpServerConfig, like: McpAccount) -> None:
    """Connect the caller to a server with the tokens of another account."""
    account_id, url = ids.new(), server.url or ""
    tokens = opened(secret_box(), like.tokens, SealedTokens, "mcp_accounts", like.id)
    moved = msgspec.structs.replace(tokens, server=server.name, resource=url)
    account = NewMcpAccount(
        id=account_id,
        server=server.name,
        resource=url,
        issuer=like.issuer,
        client_id=like.client_id,
        tokens=seal(secret_box(), moved, "mcp_accounts", account_id),
        scope=None,
        access_expires_at=None,
    )
    await mcp_accounts.connect(store, caller, account)


def servers_of(store: Database, personal: PersonalServer, public_url: str | None = None) -> AccountServers:
    """The services of another process."""
    allow = parse_networks(["127.0.0.0/8"])
    return open_account_servers(config_of(personal), store, secret_box(), allow=allow, public_url=public_url)


def tokens_of(
    store: Database,
    personal: PersonalServer,
    account: McpAccount,
    oauth: McpOAuthConfig | None = None,
    keys: Sequence[bytes] = (b64decode(KEYS),),
) -> AccountTokens:
    """The account's tokens in another process, which may have another configuration."""
    [server] = servers_of(store, personal)._servers.values()
    assert isinstance(server, AccountServer)
    config = server.config if oauth is None else msgspec.structs.replace(server.config, oauth=oauth)
    return AccountTokens(store, SecretBox(list(keys)), config, server.http, account.id, set())


async def user_id_of(browser: httpx.AsyncClient) -> UUID:
    """The id of the account."""
    return UUID((await browser.get("/api/me")).raise_for_status().json()["id"])


async def stored_account(store: Database, browser: httpx.AsyncClient) -> McpAccount:
    """The account's connection as it is stored."""
    async with store.driver() as driver:
        account = await mcp_accounts.find(driver, await user_id_of(browser), "notes")
    assert account is not None
    return account


async def listed_account(store: Database, browser: httpx.AsyncClient) -> McpAccount:
    """The account, once the server has stored its tools, and does nothing with it until the next call."""
    async with asyncio.timeout(10):
        while (account := await stored_account(store, browser)).listed_at is None:
            await asyncio.sleep(0.05)
    return account
