"""How people connect their accounts: who completes what was begun, and which addresses and issuers are accepted."""

from base64 import b64decode
from typing import Any

import msgspec
import pytest
from mcp.shared.auth import OAuthMetadata

from khala.domain.errors import Unavailable
from khala.domain.secret_box import SecretBox
from khala.store.postgres.database import Database
from khala.tools.mcp import McpServerConfig
from khala.tools.mcp.accounts.account_server import allows_issuer
from khala.tools.mcp.accounts.authorization_http import AuthorizationHttp, ClientCredentials, ConnectError
from khala.tools.mcp.accounts.client_metadata import client_document
from khala.tools.mcp.accounts.discovery import discover
from khala.tools.mcp.accounts.registrations import ClientRegistrations
from khala.tools.mcp.oauth_config import McpOAuthConfig
from khala.tools.ssrf_guard import parse_networks
from tests.support.callers import person
from tests.support.client import client
from tests.support.connections import BACK, KEYS, begin, come_back, config_of, connection, servers_of, without_issuer
from tests.support.in_process import InProcessServer
from tests.support.mcp_accounts import PersonalServer, personal_server, query
from tests.support.oauth import signed_in
from tests.support.ports import free_port

pytestmark = pytest.mark.asyncio(loop_scope="package")


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
    config = config_of(personal).servers["notes"]
    http = AuthorizationHttp(config)
    open_to_all = AuthorizationHttp(without_issuer(config), allow=parse_networks(["10.0.0.0/8"]))
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
    fixed = config_of(personal, scope="write").servers["notes"]
    assert (await discover(fixed, http, "admin")).scope == "write", "a configured scope replaces those demanded"
    with pytest.raises(ConnectError, match="belongs neither"):
        await AuthorizationHttp(config_of(personal, issuer="https://login.example").servers["notes"]).get(
            personal.issuer.issuer
        )


async def test_only_the_operator_chooses_an_issuer_on_another_origin(personal: PersonalServer, store: Database) -> None:
    notes = config_of(personal).servers["notes"]
    allowed = parse_networks(["127.0.0.0/8"])
    for config, message in (
        (without_issuer(notes), "another origin. The operator can allow it with issuer"),
        (config_of(personal, issuer="https://login.example").servers["notes"], "its configured issuer"),
    ):
        with pytest.raises(ConnectError, match=message):
            await discover(config, AuthorizationHttp(config, allow=allowed), None)
        assert not allows_issuer(config, personal.issuer.issuer), "an account from before is used no more"
    port = free_port()
    async with personal_server((port, port)) as together:
        own = without_issuer(config_of(together).servers["notes"])
        found = await discover(own, AuthorizationHttp(own), None)
        assert str(found.metadata.issuer) == together.issuer.issuer
        assert allows_issuer(own, together.issuer.issuer)
    somebody = await person(store)
    with pytest.raises(Unavailable, match="no https address"):
        await servers_of(store, personal).begin(somebody.caller, "notes", "http://chat.example", "/")


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

    notes = config_of(personal).servers["notes"]
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
