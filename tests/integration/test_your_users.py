"""Users of an application: JWTs of its issuers, its services' tokens, and thread tokens for its browsers."""

import asyncio
import hmac
import json
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey
from websockets import InvalidStatus

from khala.domain import ids
from khala.domain.access import Caller, ServiceScope
from khala.domain.accounts import Identity
from khala.store.accounts import account_status, accounts, service_tokens
from khala.store.postgres.database import Database
from tests.support.client import Thread
from tests.support.frames import socket
from tests.support.in_process import InProcessServer, khala
from tests.support.oidc.forger import Answer, Forger, forging
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "0123456789abcdef0123456789abcdef"
OLD_SECRET = "an-older-secret-that-is-still-accepted"
BY_SECRET = "https://by-secret.example"
ADDRESS = "root@example.org"
ALL_SCOPES: tuple[ServiceScope, ...] = ("impersonate", "threads:read", "threads:write", "tokens", "admin")
GOOD = range(200, 300)
QUESTION = {"id": "question", "role": "user", "parts": [{"type": "text", "text": "Hello?"}]}
TWO_ALGORITHMS = '{"alg":"RS256","alg":"none"}'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def forger() -> AsyncIterator[Forger]:
    async with forging() as issuer:
        yield issuer


def configuration(forger: Forger, **more: Any) -> str:
    """The configuration: one issuer by its keys, and one by a secret."""
    claims = {"plan": "app.plan", "admin": "https://example.org/admin"}
    by_keys = {"issuer": forger.url, "jwksUrl": f"{forger.url}/jwks", "algorithms": ["RS256"], "audience": "khala"}
    by_secret = {
        "issuer": BY_SECRET,
        "secretEnv": ["APP_SECRET", "OLD_APP_SECRET"],
        "algorithms": ["HS256"],
        "audience": ["khala", "app"],
        "clockSkewSeconds": 0,
    }
    issuers = {
        "keys": by_keys | {"claims": claims, "adminGroups": ["operators"]},
        "secret": by_secret | {"claims": {"id": "user_id"}, "trustEmail": True},
    }
    return json.dumps({"issuers": issuers, **more})


SECRETS = {"APP_SECRET": SECRET, "OLD_APP_SECRET": OLD_SECRET}
PLANS = {"plans": {"small": {"runsPerHour": 1}, "large": {"runsPerHour": 5}}, "defaultPlan": "small"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(postgres_url: str, template: str, forger: Forger) -> AsyncIterator[InProcessServer]:
    env = SECRETS | {"KHALA_JWT": configuration(forger, **PLANS), "KHALA_ADMINS": ADDRESS}
    async with shared(postgres_url, template, with_executor=False, **env) as inside:
        yield inside


def by_secret(secret: str = SECRET, algorithm: str = "HS256", **changed: object) -> str:
    """A token of the issuer with the secret; a claim that is None is left out."""
    now = int(time.time())
    claims = {"iss": BY_SECRET, "user_id": "alice", "aud": "khala", "exp": now + 300, "iat": now} | changed
    given = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode({"alg": algorithm}, given, OctKey.import_key(secret), algorithms=[algorithm])


def bearer(token: str, **headers: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} | headers


def encoded(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


async def me(server: InProcessServer, token: str, **headers: str) -> httpx.Response:
    return await server.http.get("/api/me", headers=bearer(token, **headers))


async def user(server: InProcessServer, token: str) -> dict[str, Any]:
    return dict((await me(server, token)).raise_for_status().json())


async def owned_thread(server: InProcessServer, headers: dict[str, str]) -> str:
    created = await server.http.post("/api/threads", json={}, headers=headers)
    return str(created.raise_for_status().json()["thread"]["id"])


async def service(store: Database, *scopes: ServiceScope, name: str = "shop", issuer: str | None = None) -> str:
    """The secret of a new service token."""
    identity = Identity(issuer=service_tokens.ISSUER, subject=name, name=name)
    account = await accounts.of_identity(store, identity, Caller())
    users = issuer or service_tokens.user_issuer_of(name)
    return (await service_tokens.create(store, account, name, scopes, user_issuer=users, expires_at=None))[1]


# JWTs


async def test_the_first_token_of_a_subject_makes_its_account_and_later_ones_find_it(
    server: InProcessServer, forger: Forger
) -> None:
    subject = uuid.uuid4().hex
    first = await user(server, forger.signed(sub=subject, name="Zeratul", email="Z@Example.org", email_verified=True))
    again = await user(server, forger.signed(sub=subject, name="Another name"))
    assert (first["name"], first["email"]) == ("Zeratul", "z@example.org")
    assert first["identities"] == [{"issuer": forger.url, "email": "z@example.org"}]
    assert again["id"] == first["id"]
    # Neither the address nor the subject of another issuer leads to the account.
    same_address = await user(server, forger.signed(sub=uuid.uuid4().hex, email="z@example.org", email_verified=True))
    same_subject = await user(server, by_secret(user_id=subject, email="z@example.org"))
    assert len({first["id"], same_address["id"], same_subject["id"]}) == 3
    unverified = await user(server, forger.signed(sub=uuid.uuid4().hex, email="z@example.org"))
    assert "email" not in unverified


async def test_many_first_tokens_at_once_make_one_account(server: InProcessServer) -> None:
    tokens = [by_secret(user_id="crowd") for _ in range(10)]
    assert len({user["id"] for user in await asyncio.gather(*(user_of(server, token) for token in tokens))}) == 1


async def user_of(server: InProcessServer, token: str) -> dict[str, Any]:
    return await user(server, token)


async def test_a_secret_can_be_replaced_while_the_old_one_is_accepted(server: InProcessServer) -> None:
    assert (await user(server, by_secret()))["id"] == (await user(server, by_secret(OLD_SECRET)))["id"]


def forged_tokens(forger: Forger) -> dict[str, str]:
    """Tokens that must be refused, by what is wrong with them."""
    now = int(time.time())
    public = json.dumps(forger.key.as_dict(private=False))
    pem = forger.key.as_pem(private=False).decode() if isinstance(forger.key, RSAKey) else ""
    other = RSAKey.generate_key(2048, {"kid": "first"})
    good = forger.signed()
    head, body, signature = good.split(".")
    honest = {"iss": forger.url, "sub": "alice", "aud": "khala", "exp": now + 300}

    def unsigned(header: object, claims: object = honest, signature: str = "") -> str:
        return f"{encoded(header)}.{encoded(claims)}.{signature}"

    def hmac_by(key: str) -> str:
        return raw_hmac(key, json.dumps(honest))

    twice = json.dumps(honest)[:-1] + ', "sub": "bob"}'
    return {
        "none": unsigned({"alg": "none"}),
        "None": unsigned({"alg": "None", "kid": "first"}, signature=signature),
        "none with the signature of another token": f"{encoded({'alg': 'none'})}.{body}.{signature}",
        "no signature": f"{head}.{body}.",
        "another key": forger.signed(key=other),
        "another algorithm of the same key": forger.signed(header={"alg": "PS256"}),
        "an elliptic key": forger.signed(key=ECKey.generate_key("P-256", {"kid": "first"})),
        "HS256 by the public key as PEM": hmac_by(pem),
        "HS256 by the public key as JWK": hmac_by(public),
        "HS256 by the secret of another issuer": hmac_by(SECRET),
        "another secret": by_secret("f" * 32),
        "another HMAC": by_secret(algorithm="HS512"),
        "a changed claim": f"{head}.{encoded(honest | {'sub': 'bob'})}.{signature}",
        "no audience": forger.signed(aud=None),
        "another audience": forger.signed(aud="somebody else"),
        "an empty list of audiences": forger.signed(aud=[]),
        "expired": forger.signed(exp=now - 3600),
        "expired without a skew": by_secret(exp=now - 2),
        "no expiry": forger.signed(exp=None),
        "an expiry that is no number": forger.signed(exp="never"),
        "not valid yet": forger.signed(nbf=now + 3600),
        "issued in the future": forger.signed(iat=now + 3600),
        "another issuer": forger.signed(iss="https://elsewhere.example"),
        "an issuer whose keys are others": forger.signed(iss=BY_SECRET),
        "an issuer that is a list": forger.signed(iss=[forger.url]),
        "no subject": forger.signed(sub=None),
        "an empty subject": forger.signed(sub=""),
        "a subject that is an object": forger.signed(sub={"id": 1}),
        "a subject that is too long": forger.signed(sub="a" * 256),
        "a subject with a line break": forger.signed(sub="alice\nbob"),
        "an unknown key id": forger.signed(header={"kid": "unknown"}),
        "a key id that is a path": forger.signed(key=other, header={"kid": "../../../../dev/null"}),
        "a key id that is a URL": forger.signed(key=other, header={"kid": f"{forger.url}/evil"}),
        "a key id that is a list": unsigned({"alg": "RS256", "kid": ["first"]}, signature=signature),
        "jku": forger.signed(key=other, header={"jku": f"{forger.url}/evil"}),
        "x5u": forger.signed(key=other, header={"x5u": f"{forger.url}/evil"}),
        "jwk": forger.signed(key=other, header={"jwk": other.as_dict(private=False)}),
        "crit": forger.signed(header={"crit": ["kid"]}),
        "a type for something else": forger.signed(header={"typ": "logout+jwt"}),
        "a duplicate claim": raw_hmac(SECRET, twice.replace(forger.url, BY_SECRET)),
        "a duplicate in the header": f"{encoded(TWO_ALGORITHMS)}.{body}.{signature}",
        "more than 16 KiB": forger.signed(padding="x" * 17_000),
        "a megabyte of claims": forger.signed(padding="x" * 1_000_000),
        "deep claims": unsigned({"alg": "RS256"}, "[" * 5000, signature),
        "no JSON": f"{head}.{encoded('nonsense')}.{signature}",
        "two parts": f"{head}.{body}",
    }


def raw_hmac(key: str, claims: str) -> str:
    """These claims, signed by HS256 with this key, which libraries refuse if it is a public key."""
    signed = f"{encoded({'alg': 'HS256', 'kid': 'first'})}.{encoded(claims)}"
    signature = hmac.digest(key.encode(), signed.encode(), "sha256")
    return f"{signed}.{urlsafe_b64encode(signature).decode().rstrip('=')}"


async def test_forged_tokens_are_refused_and_no_address_in_them_is_used(
    server: InProcessServer, forger: Forger
) -> None:
    assert (await me(server, forger.signed())).status_code == 200
    fetches = forger.request_counts["/jwks"]
    answers = {}
    for name, token in forged_tokens(forger).items():
        try:
            answers[name] = (await me(server, token)).status_code
        except httpx.HTTPError:  # the head is too large, and the server has closed the connection
            answers[name] = 431
    too_large = {"a megabyte of claims": (400, 401, 431)}
    wrong = {name: status for name, status in answers.items() if status not in too_large.get(name, (401,))}
    assert not wrong
    assert forger.request_counts["/evil"] == 0
    # An unknown key id fetches the keys again, but not more often than every ten seconds.
    assert forger.request_counts["/jwks"] - fetches <= 2
    assert (await me(server, forger.signed())).status_code == 200


async def test_a_token_works_at_every_door(server: InProcessServer) -> None:
    headers = bearer(by_secret(user_id="doors"))
    thread_id = await owned_thread(server, headers)
    of_thread = (f"/api/threads/{thread_id}", f"/v1/stream/threads/{thread_id}", f"/api/chat/{thread_id}")
    for path in (*of_thread, "/v1/models"):
        assert (await server.http.get(path, headers=headers)).status_code == 200, path
    listed = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    accept = {"Accept": "application/json, text/event-stream"}
    assert (await server.http.post("/mcp", json=listed, headers=headers | accept)).status_code == 200
    async with socket(server, additional_headers=headers) as feed:
        await feed.send({"type": "subscribe", "threadId": thread_id})
        assert (await feed.next())["type"] == "snapshot"
    async with server.http.stream("GET", f"/api/threads/{thread_id}/events", headers=headers) as events:
        assert events.status_code == 200


async def test_a_socket_that_outlives_its_token_loses_its_access_unless_a_new_token_renews_it(
    server: InProcessServer,
) -> None:
    def short(seconds: int) -> str:
        return by_secret(user_id="sockets", exp=int(time.time()) + seconds)

    thread_id = await owned_thread(server, bearer(short(60)))
    async with socket(server) as renewed, socket(server, additional_headers=bearer(short(2))) as ended:
        await renewed.send({"type": "authenticate", "token": short(2)})
        assert (await renewed.next())["type"] == "authenticated"
        for feed in (renewed, ended):
            await feed.send({"type": "subscribe", "threadId": thread_id})
            assert (await feed.until("snapshot"))["threadId"] == thread_id
        await renewed.send({"type": "authenticate", "token": short(60)})
        await renewed.until("authenticated")
        gone = await ended.until("gone")
        assert (gone["threadId"], gone["code"]) == (thread_id, "forbidden")
        await renewed.expect_nothing()
        await ended.send({"type": "subscribe", "threadId": thread_id})
        assert (await ended.until("error"))["code"] == "forbidden"


async def test_keys_rotate_and_known_keys_go_on_while_the_issuer_is_down(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("khala.identity.jwt_issuers.KEYS_MIN_AGE_SECONDS", 0.0)
    async with forging() as issuer:
        issuer.answers["/jwks"] = Answer(status=500)
        async with khala(database_url, with_executor=False, KHALA_JWT=configuration(issuer), **SECRETS) as inside:
            monkeypatch.setattr("khala.identity.cached_value.RETRY_AFTER_SECONDS", 0.0)
            down = await me(inside, issuer.signed())
            assert (down.status_code, down.json()["code"]) == (503, "unavailable")
            assert int(down.headers["retry-after"]) >= 1
            del issuer.answers["/jwks"]
            old = issuer.signed()
            assert (await me(inside, old)).status_code == 200
            issuer.key = RSAKey.generate_key(2048, {"kid": "second", "use": "sig"})
            assert (await me(inside, issuer.signed())).status_code == 200
            assert (await me(inside, old)).status_code == 401
            issuer.answers["/jwks"] = Answer(status=500)
            monkeypatch.setattr("khala.identity.jwt_issuers.KEYS_MAX_AGE_SECONDS", 0.0)
            assert (await me(inside, issuer.signed())).status_code == 200
            assert (await me(inside, issuer.signed(header={"kid": "third"}))).status_code == 503


async def test_a_blocked_account_stays_blocked(server: InProcessServer, store: Database) -> None:
    token = by_secret(user_id="blocked")
    account = (await user(server, token))["id"]
    thread_id = await owned_thread(server, bearer(token))
    async with socket(server, additional_headers=bearer(token)) as feed:
        await feed.send({"type": "subscribe", "threadId": thread_id})
        await feed.until("snapshot")
        await account_status.set_blocked(store, account, blocked=True)
        assert (await feed.until("gone"))["code"] == "forbidden"
    refused = await me(server, by_secret(user_id="blocked"))
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert "blocked" in refused.json()["detail"]
    impersonating = await service(store, "impersonate", "threads:read", issuer=BY_SECRET)
    assert (await me(server, impersonating, **{"Khala-User": "blocked"})).status_code == 403
    await account_status.set_blocked(store, account, blocked=False)
    assert (await user(server, token))["id"] == account


async def runs_until_refused(server: InProcessServer, token: str) -> dict[str, Any]:
    """Send until the account's limit of runs refuses. Returns the problem."""
    headers = bearer(token)
    thread_id = await owned_thread(server, headers)
    for _ in range(10):
        body = {"text": "Hello", "options": {"ifBusy": "queue"}}
        sent = await server.http.post(f"/api/threads/{thread_id}/send", json=body, headers=headers)
        if sent.status_code == 429:
            return dict(sent.json())
    raise AssertionError("no limit")


@pytest.mark.parametrize(
    ("plan", "most"), [({"plan": "large"}, "5"), ({"plan": "small"}, "1"), ({"plan": "unheard of"}, "1"), (None, "1")]
)
async def test_a_claim_chooses_the_plan_of_budgets(
    server: InProcessServer, forger: Forger, plan: object, most: str
) -> None:
    token = forger.signed(sub=uuid.uuid4().hex, app=plan)
    refused = await runs_until_refused(server, token)
    assert (refused["limit"], refused["scope"], refused["most"]) == ("runs_per_hour", "account", most)
    usage = (await server.http.get("/api/me/usage", headers=bearer(token))).json()["items"]
    assert {used["most"] for used in usage if used["measure"] == "runs"} == {most}


async def test_a_change_of_the_plan_applies_to_the_next_send(server: InProcessServer, forger: Forger) -> None:
    subject = uuid.uuid4().hex
    assert (await runs_until_refused(server, forger.signed(sub=subject, app={"plan": "small"})))["most"] == "1"
    assert (await runs_until_refused(server, forger.signed(sub=subject, app={"plan": "large"})))["most"] == "5"


# Administrators


async def test_an_administrator_is_made_by_a_claim_a_group_the_setting_or_the_command(
    server: InProcessServer, forger: Forger, store: Database
) -> None:
    def token(**claims: Any) -> str:
        return forger.signed(sub=uuid.uuid4().hex, **claims)

    administrators: tuple[dict[str, Any], ...] = (
        {"https://example.org/admin": True},
        {"groups": ["operators"]},
        {"email": ADDRESS.upper(), "email_verified": True},
    )
    for claims in administrators:
        assert (await user(server, token(**claims))).get("admin") is True, claims
    others: tuple[dict[str, Any], ...] = (
        {},
        {"https://example.org/admin": "true"},
        {"groups": ["Operators", "readers"]},
        {"email": ADDRESS},
        {"email": ADDRESS, "email_verified": "true"},
        {"admin": True},
    )
    for claims in others:
        assert "admin" not in await user(server, token(**claims)), claims
    plain = token()
    account = (await user(server, plain))["id"]
    await account_status.set_admin(store, account, admin=True)
    assert (await user(server, plain))["admin"] is True
    limited = await server.http.post("/api/tokens", json={"name": "limited", "scopes": ["read"]}, headers=bearer(plain))
    assert "admin" not in await user(server, limited.json()["token"])
    await account_status.set_admin(store, account, admin=False)
    assert "admin" not in await user(server, plain)


async def test_a_registered_address_makes_no_administrator(server: InProcessServer) -> None:
    body = {"email": ADDRESS, "password": "en taro adun"}
    registered = await server.http.post("/api/auth/register", json=body)
    account = await server.http.get("/api/me")
    server.http.cookies.clear()
    assert account.json()["id"] == registered.json()["id"]
    assert "admin" not in account.json()


# Services


async def test_a_service_acts_for_a_user_and_both_are_in_the_audit_trail(
    server: InProcessServer, store: Database
) -> None:
    token = await service(store, "impersonate", "threads:write", name="audited")
    alice = bearer(token, **{"Khala-User": "alice@example.org"})
    thread_id = await owned_thread(server, alice)
    mine = (await server.http.get("/api/me", headers=alice)).json()
    own = (await me(server, token)).json()
    bob = (await me(server, token, **{"Khala-User": "bob"})).json()
    assert len({mine["id"], own["id"], bob["id"]}) == 3
    assert own["name"] == "audited"
    shown = await server.http.get(f"/api/threads/{thread_id}", headers=bearer(token, **{"Khala-User": "bob"}))
    assert shown.status_code == 403
    assert (await server.http.get(f"/api/threads/{thread_id}", headers=bearer(token))).status_code == 403
    async with store.driver() as driver:
        rows = await driver.fetch("SELECT action, detail FROM audit WHERE user_id = $1", uuid.UUID(mine["id"]))
    entries = {row["action"]: json.loads(row["detail"]) for row in rows}
    assert {"registered", "impersonated"} <= set(entries)
    assert {entry["service"] for entry in entries.values()} == {"audited"}
    assert [row["action"] for row in rows].count("impersonated") == 1


async def test_users_of_two_services_are_apart_and_those_of_an_issuer_are_its_own(
    server: InProcessServer, store: Database
) -> None:
    tokens = [await service(store, "impersonate", "threads:read", name=name) for name in ("one", "two")]
    tokens.append(await service(store, "impersonate", "threads:read", name="three", issuer=BY_SECRET))
    seen = [(await me(server, token, **{"Khala-User": "shared"})).json()["id"] for token in tokens]
    assert len(set(seen)) == 3
    assert seen[2] == (await user(server, by_secret(user_id="shared")))["id"]


SCOPED: dict[str, tuple[str, str, object, set[ServiceScope]]] = {
    "read": ("GET", "/api/threads/{id}", None, {"threads:read", "threads:write"}),
    "write": ("PATCH", "/api/threads/{id}", {"title": "Aiur"}, {"threads:write"}),
    "make a thread token": ("POST", "/api/threads/{id}/tokens", {"role": "viewer"}, {"tokens"}),
    "list thread tokens": ("GET", "/api/threads/{id}/tokens", None, {"tokens"}),
    "change the account": ("PATCH", "/api/me", {"name": "Somebody"}, set()),
    "make an API token": ("POST", "/api/tokens", {"name": "more"}, set()),
}
"""By request, the scopes of which one is enough."""


@pytest.mark.parametrize("acts_for", [None, "alice"])
@pytest.mark.parametrize("scope", ALL_SCOPES)
async def test_each_scope_of_a_service_allows_what_it_names(
    server: InProcessServer, store: Database, scope: ServiceScope, acts_for: str | None
) -> None:
    name = f"scoped-{ids.new().hex[:8]}"
    user_header = {} if acts_for is None else {"Khala-User": acts_for}
    everything = bearer(await service(store, *ALL_SCOPES, name=name), **user_header)
    thread_id = await owned_thread(server, everything)
    impersonates: tuple[ServiceScope, ...] = () if acts_for is None else ("impersonate",)
    headers = bearer(await service(store, scope, *impersonates, name=name), **user_header)
    for what, (method, path, body, enough) in SCOPED.items():
        answer = await server.http.request(method, path.format(id=thread_id), json=body, headers=headers)
        assert (answer.status_code in GOOD) is (scope in enough), (what, answer.text)
        assert answer.status_code in (*GOOD, 403)


async def test_only_a_service_with_the_scope_may_name_a_user(
    server: InProcessServer, store: Database, forger: Forger
) -> None:
    named = {"Khala-User": "alice"}
    refused = [await me(server, await service(store, "threads:read", "threads:write", "admin"), **named)]
    ordinary = await server.http.post("/api/tokens", json={"name": "ordinary"}, headers=bearer(by_secret()))
    refused += [await me(server, token, **named) for token in (ordinary.json()["token"], by_secret(), forger.signed())]
    thread = await server.thread()
    refused.append(await server.http.get(f"/api/threads/{thread.id}", headers=thread.headers | named))
    refused.append(await server.http.get("/api/me", headers=named))
    refused.append(await server.http.get("/v1/models", headers=bearer(by_secret(), **named)))
    refused.append(await server.http.post("/mcp", json={}, headers=bearer(by_secret(), **named)))
    assert {answer.status_code for answer in refused} == {403}
    with pytest.raises(InvalidStatus, match="403"):
        async with socket(server, additional_headers=bearer(by_secret(), **named)):
            pass
    token = await service(store, "impersonate", "threads:read")
    for bad in ("", "a" * 256, "alice\tbob", "\u00e4"):
        sent = [(b"Authorization", f"Bearer {token}".encode()), (b"Khala-User", bad.encode("latin-1"))]
        answer = await server.http.get("/api/me", headers=sent)
        assert answer.status_code == 400, bad
    twice = [("Authorization", f"Bearer {token}"), ("Khala-User", "alice"), ("Khala-User", "bob")]
    assert (await server.http.get("/api/me", headers=twice)).status_code == 400


async def test_a_browser_may_not_use_a_service_token(server: InProcessServer, store: Database) -> None:
    token = await service(store, *ALL_SCOPES)
    headers = {"Origin": server.url, "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Cookie": "a=b"}
    for header in ({name: value} for name, value in headers.items()):
        refused = await me(server, token, **header)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), header
        assert "browser" in refused.json()["detail"]
    async with socket(server) as feed:
        await feed.send({"type": "authenticate", "token": token})
        assert (await feed.next())["code"] == "forbidden"
    with pytest.raises(InvalidStatus, match="403"):
        async with socket(server, additional_headers=bearer(token), origin=server.url):
            pass


async def test_a_service_is_an_administrator_only_by_its_scope(server: InProcessServer, store: Database) -> None:
    assert (await me(server, await service(store, "admin", "threads:read"))).json().get("admin") is True
    assert "admin" not in (await me(server, await service(store, "threads:read"))).json()
    acting = await service(store, "admin", "impersonate", "threads:read", name="acting")
    named = {"Khala-User": "alice"}
    alice = (await me(server, acting, **named)).json()
    assert "admin" not in alice
    await account_status.set_admin(store, alice["id"], admin=True)
    assert (await me(server, acting, **named)).json()["admin"] is True
    without = await service(store, "impersonate", "threads:read", name="acting")
    assert "admin" not in (await me(server, without, **named)).json()


async def test_a_revoked_service_token_ends_the_sockets_of_all_its_users(
    server: InProcessServer, store: Database
) -> None:
    token = await service(store, "impersonate", "threads:write", name="revoked")
    headers = bearer(token, **{"Khala-User": "alice"})
    thread_id = await owned_thread(server, headers)
    async with store.driver() as driver:
        listed = await service_tokens.all_tokens(driver)
    token_id = next(each.id for each in listed if each.service == "revoked")
    async with socket(server, additional_headers=headers) as feed:
        await feed.send({"type": "subscribe", "threadId": thread_id})
        await feed.until("snapshot")
        await service_tokens.revoke(store, token_id)
        assert (await feed.until("gone"))["code"] == "forbidden"
    assert (await server.http.get("/api/me", headers=headers)).status_code == 401


# Thread tokens


async def thread_token(thread: Thread, role: str = "editor", **body: object) -> dict[str, Any]:
    """A new token of the thread."""
    return dict((await thread.post("tokens", {"role": role, **body})).raise_for_status().json())


async def test_a_thread_token_opens_its_thread_and_nothing_else(server: InProcessServer) -> None:
    thread, other = await server.thread(), await server.thread()
    headers = bearer((await thread_token(thread))["token"])
    assert (await server.http.get(f"/api/threads/{thread.id}", headers=headers)).status_code == 200
    sent = await server.http.post(f"/api/threads/{thread.id}/send", json={"text": "Hello"}, headers=headers)
    assert sent.status_code == 202
    assert (await server.http.get(f"/api/runs/{sent.json()['runId']}", headers=headers)).status_code == 200
    for method, path, body in (
        ("GET", f"/api/threads/{other.id}", None),
        ("POST", f"/api/threads/{other.id}/send", {"text": "Hello"}),
        ("GET", "/api/me", None),
        ("GET", "/api/threads", None),
        ("POST", "/api/threads", {}),
        ("POST", "/api/claims", {"items": []}),
        ("GET", "/v1/models", None),
        ("POST", f"/api/threads/{thread.id}/tokens", {"role": "viewer"}),
        ("POST", f"/api/threads/{thread.id}/links", {"role": "viewer"}),
        ("DELETE", f"/api/threads/{thread.id}", None),
        ("POST", "/api/chat", {"id": str(uuid.uuid4()), "messages": [QUESTION]}),
        ("POST", "/api/chat", {"id": other.id, "messages": [QUESTION]}),
        ("POST", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
    ):
        refused = await server.http.request(method, path, json=body, headers=headers)
        assert refused.status_code in (401, 403), (method, path, refused.text)
    claim = await server.http.post(f"/api/threads/{thread.id}/claim", json={"anonKey": thread.key}, headers=headers)
    assert claim.status_code == 401
    joined = await server.http.post(f"/api/threads/{thread.id}/join", headers=headers)
    assert joined.status_code == 401
    both = await server.http.get(f"/api/threads/{thread.id}", headers=headers | other.headers)
    assert both.status_code == 403


async def test_a_thread_token_is_no_share_key_and_is_in_no_list(server: InProcessServer) -> None:
    owner = bearer(by_secret(user_id="lists"))
    thread_id = await owned_thread(server, owner)
    path = f"/api/threads/{thread_id}"
    made = (await server.http.post(f"{path}/tokens", json={"role": "editor"}, headers=owner)).json()
    stranger = bearer(by_secret(user_id="stranger"))
    joined = await server.http.post(f"{path}/join", headers=stranger | {"X-Share-Key": made["token"]})
    assert joined.status_code == 403
    assert (await server.http.get(path, headers={"X-Share-Key": made["token"]})).status_code == 403
    assert (await server.http.get(f"{path}/links", headers=owner)).json()["items"] == []
    assert len((await server.http.get(f"{path}/members", headers=owner)).json()["items"]) == 1
    assert (await server.http.get(path, headers=owner)).json()["thread"]["visibility"] == "private"
    assert (await server.http.delete(f"{path}/links/{made['id']}", headers=owner)).status_code == 404
    listed = (await server.http.get(f"{path}/tokens", headers=owner)).json()["items"]
    assert listed == [{name: made[name] for name in ("id", "role", "createdAt", "expiresAt")}]


@pytest.mark.parametrize("how", ["revoke", "reset", "delete", "private"])
async def test_a_thread_token_ends_with_its_revocation_and_with_the_thread(server: InProcessServer, how: str) -> None:
    thread = await server.thread()
    made = await thread_token(thread)
    headers = bearer(made["token"])
    path = f"/api/threads/{thread.id}"
    async with socket(server) as feed:
        await feed.send({"type": "authenticate", "token": made["token"]})
        assert await feed.next() == {"type": "authenticated", "threadId": thread.id}
        await feed.send({"type": "subscribe", "threadId": thread.id})
        await feed.until("snapshot")
        requests = {
            "revoke": ("DELETE", f"{path}/tokens/{made['id']}", None),
            "reset": ("POST", f"{path}/reset", None),
            "delete": ("DELETE", path, None),
            "private": ("PATCH", path, {"visibility": "private"}),
        }
        method, url, body = requests[how]
        ended = await server.http.request(method, url, json=body, headers=thread.headers)
        assert ended.status_code in GOOD
        assert (await feed.until("gone"))["threadId"] == thread.id
    assert (await server.http.get(path, headers=headers)).status_code == 401
    async with socket(server) as feed:
        await feed.send({"type": "authenticate", "token": made["token"]})
        assert (await feed.next())["code"] == "unauthorized"


async def test_a_thread_token_expires_and_a_newer_one_renews_the_subscription(server: InProcessServer) -> None:
    thread = await server.thread()
    short, long = [await thread_token(thread, "viewer", expiresIn=seconds) for seconds in (1, 60)]
    async with socket(server) as renewed, socket(server) as ended:
        for feed in (renewed, ended):
            await feed.send({"type": "authenticate", "token": short["token"]})
            await feed.send({"type": "subscribe", "threadId": thread.id})
            await feed.until("snapshot")
        await renewed.send({"type": "authenticate", "token": long["token"]})
        await renewed.until("authenticated")
        assert (await ended.until("gone"))["code"] == "forbidden"
        await renewed.expect_nothing()
    assert (await server.http.get(f"/api/threads/{thread.id}", headers=bearer(short["token"]))).status_code == 401
    for bad in ({"role": "owner"}, {"role": "viewer", "expiresIn": 0}, {"role": "viewer", "expiresIn": 10**9}):
        assert (await thread.post("tokens", bad)).status_code == 400
