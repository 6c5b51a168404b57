"""Sign-in at a real OpenID Provider, and at providers that lie, stay silent or fail."""

import asyncio
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import httpx2
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc.jwk import ECKey, RSAKey

from khala.domain.accounts import Identity
from khala.domain.errors import Unauthorized, Unavailable
from khala.identity import oidc, oidc_http
from khala.identity.oidc import OidcProvider, OidcSettings
from tests.support.oidc.forger import Answer, Forger, forging
from tests.support.oidc.provider import AUDIENCE, CALLBACK, CLIENTS, SIGNED_OUT, RealProvider, parameter, running
from tests.support.ports import free_port

DISCOVERY = "/.well-known/openid-configuration"


class Clock:
    """A clock that the test can advance."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def time(self) -> float:
        return time.time() + self.ahead

    def elapsed(self) -> float:
        return time.monotonic() + self.ahead


@asynccontextmanager
async def relying_party(settings: OidcSettings, clock: Clock | None = None) -> AsyncIterator[OidcProvider]:
    clock = clock or Clock()
    provider = OidcProvider(settings, clock=clock.time, elapsed=clock.elapsed)
    try:
        yield provider
    finally:
        await provider.aclose()


async def signed_in(khala: OidcProvider, real: RealProvider, login: str = "alice") -> oidc.CompletedSignIn:
    begun = await khala.begin(CALLBACK)
    code = await real.code(begun.url, login=login)
    return await khala.finish(code=code, redirect_uri=CALLBACK, verifier=begun.verifier, nonce=begun.nonce)


async def finish_sign_in(khala: OidcProvider, **changed: str) -> oidc.CompletedSignIn:
    """A sign-in at the forger, which accepts any code."""
    return await khala.finish(
        **{"code": "code", "redirect_uri": CALLBACK, "verifier": "v", "nonce": "nonce", **changed}
    )


@pytest.fixture(scope="module")
def real() -> Iterator[RealProvider]:
    with running() as provider:
        yield provider


@pytest.fixture
async def khala(real: RealProvider) -> AsyncIterator[OidcProvider]:
    async with relying_party(real.settings()) as provider:
        yield provider


@pytest.fixture
async def forger() -> AsyncIterator[Forger]:
    async with forging() as found:
        yield found


@pytest.fixture
async def trusting_khala(forger: Forger) -> AsyncIterator[OidcProvider]:
    """Khala, configured to trust the forger."""
    async with relying_party(forger.settings) as provider:
        yield provider


# Signing in


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_user_signs_in_with_a_client_of_each_kind(real: RealProvider, client: str) -> None:
    async with relying_party(real.settings(client)) as khala:
        alice = await signed_in(khala, real)
    assert alice.identity == Identity(
        issuer=real.issuer, subject="alice", email="alice@example.org", name="Alice Example"
    )
    head = msgspec.json.decode(urlsafe_b64decode(alice.id_token.partition(".")[0] + "=="))
    assert head["alg"] == CLIENTS[client]


async def test_a_sign_in_request_has_state_nonce_and_pkce(real: RealProvider, khala: OidcProvider) -> None:
    one, other = await khala.begin(CALLBACK), await khala.begin(CALLBACK)
    assert one.url.startswith(f"{real.issuer}/auth?")
    params = {name: parameter(one.url, name) for name in ("state", "nonce", "code_challenge_method", "response_type")}
    assert params == {"state": one.state, "nonce": one.nonce, "code_challenge_method": "S256", "response_type": "code"}
    assert one.verifier not in one.url
    assert len({one.state, other.state, one.nonce, other.nonce, one.verifier, other.verifier}) == 6
    back = await real.authorize(one.url)
    assert parameter(back, "state") == one.state


async def test_an_unverified_address_is_left_out(real: RealProvider, khala: OidcProvider) -> None:
    bob = await signed_in(khala, real, "bob")
    assert (bob.email, bob.email_verified, bob.identity.email) == ("bob@example.org", False, None)


async def test_a_user_without_name_and_address_signs_in_too(real: RealProvider, khala: OidcProvider) -> None:
    carol = await signed_in(khala, real, "carol")
    assert carol.identity == Identity(issuer=real.issuer, subject="carol")


async def test_a_complete_id_token_needs_no_user_info_request() -> None:
    with running(conform=False) as real:
        async with relying_party(real.settings()) as khala:
            assert (await signed_in(khala, real)).identity.email == "alice@example.org"
        assert real.answered("/me") == 0


async def test_concurrent_sign_ins_do_not_mix_identities(real: RealProvider, khala: OidcProvider) -> None:
    names = ["alice", "bob", "carol"] * 3
    found = await asyncio.gather(*(signed_in(khala, real, name) for name in names))
    assert [result.subject for result in found] == names


async def test_the_discovery_document_is_fetched_once(real: RealProvider) -> None:
    before, keys = real.answered(DISCOVERY), real.answered("/jwks")
    clock = Clock()
    async with relying_party(real.settings(), clock) as khala:
        await asyncio.gather(*(khala.begin(CALLBACK) for _ in range(5)))
        await signed_in(khala, real)
        await signed_in(khala, real)
        assert (real.answered(DISCOVERY), real.answered("/jwks")) == (before + 1, keys + 1)
        clock.ahead = oidc.METADATA_MAX_AGE_SECONDS
        await khala.begin(CALLBACK)
        assert real.answered(DISCOVERY) == before + 2


async def test_a_code_is_refused_with_another_nonce(real: RealProvider, khala: OidcProvider) -> None:
    begun, other = await khala.begin(CALLBACK), await khala.begin(CALLBACK)
    code = await real.code(begun.url)
    with pytest.raises(Unauthorized):
        await khala.finish(code=code, redirect_uri=CALLBACK, verifier=begun.verifier, nonce=other.nonce)


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_code_is_refused_with_another_verifier(real: RealProvider, client: str) -> None:
    async with relying_party(real.settings(client)) as khala:
        begun, other = await khala.begin(CALLBACK), await khala.begin(CALLBACK)
        code = await real.code(begun.url)
        with pytest.raises(Unauthorized):
            await khala.finish(code=code, redirect_uri=CALLBACK, verifier=other.verifier, nonce=begun.nonce)


async def test_a_code_can_be_used_once(real: RealProvider, khala: OidcProvider) -> None:
    begun = await khala.begin(CALLBACK)
    code = await real.code(begun.url)
    await khala.finish(code=code, redirect_uri=CALLBACK, verifier=begun.verifier, nonce=begun.nonce)
    with pytest.raises(Unauthorized):
        await khala.finish(code=code, redirect_uri=CALLBACK, verifier=begun.verifier, nonce=begun.nonce)


@pytest.mark.parametrize("code", ["", "invented", "\x00", "é", "\ud800", "a" * 5000])
async def test_an_invented_code_is_refused(khala: OidcProvider, code: str) -> None:
    with pytest.raises(Unauthorized):
        await khala.finish(code=code, redirect_uri=CALLBACK, verifier="v" * 43, nonce="nonce")


async def test_an_unknown_client_is_reported_as_unavailable_and_not_as_a_users_error(real: RealProvider) -> None:
    stranger = msgspec.structs.replace(real.settings(), client_secret="wrong")
    async with relying_party(stranger) as khala:
        begun = await khala.begin(CALLBACK)
        with pytest.raises(Unavailable, match="does not accept this server"):
            await khala.finish(
                code=await real.code(begun.url), redirect_uri=CALLBACK, verifier=begun.verifier, nonce=begun.nonce
            )


# Signing out


async def test_a_user_signs_out_of_the_provider_too(real: RealProvider, khala: OidcProvider) -> None:
    id_token = (await signed_in(khala, real)).id_token
    for token in (id_token, None):
        url = await khala.end_session_url(token, SIGNED_OUT)
        assert url is not None
        async with httpx.AsyncClient() as browser:
            page = await browser.get(url)
        assert page.status_code == 200, "the provider asks for a confirmation"
        assert "/session/end/confirm" in page.text


async def test_signing_out_skips_a_provider_without_an_end_session_endpoint(trusting_khala: OidcProvider) -> None:
    assert await trusting_khala.end_session_url(None, SIGNED_OUT) is None


async def test_an_unreachable_provider_does_not_prevent_signing_out() -> None:
    async with relying_party(unreachable_provider()) as khala:
        assert await khala.end_session_url("token", SIGNED_OUT) is None


# Bearer tokens


async def test_an_access_token_for_this_audience_is_accepted(real: RealProvider) -> None:
    token = await real.access_token(login="bob")
    async with relying_party(real.settings(audience=AUDIENCE)) as khala:
        bob = await khala.verify(token)
    assert (bob.issuer, bob.subject) == (real.issuer, "bob")
    assert 3500 < bob.expires_at.timestamp() - time.time() <= 3600


async def test_an_access_token_for_another_audience_is_refused(real: RealProvider, khala: OidcProvider) -> None:
    token = await real.access_token()
    with pytest.raises(Unauthorized):
        await khala.verify(token)


async def test_without_a_configured_audience_an_id_token_is_a_bearer_token(
    real: RealProvider, khala: OidcProvider
) -> None:
    token = (await signed_in(khala, real)).id_token
    assert (await khala.verify(token)).subject == "alice"
    async with relying_party(real.settings(audience=AUDIENCE)) as khala:
        with pytest.raises(Unauthorized):
            await khala.verify(token)


async def test_an_expired_token_is_refused(real: RealProvider) -> None:
    token, clock = await real.access_token(), Clock()
    async with relying_party(real.settings(audience=AUDIENCE), clock) as khala:
        clock.ahead = 3600 + 30
        assert (await khala.verify(token)).subject == "alice", "clocks may differ by a minute"
        clock.ahead = 3600 + 62
        with pytest.raises(Unauthorized, match="expired"):
            await khala.verify(token)


async def test_a_token_of_another_provider_is_refused(real: RealProvider, trusting_khala: OidcProvider) -> None:
    token = await real.access_token()
    with pytest.raises(Unauthorized):
        await trusting_khala.verify(token)


async def test_a_tampered_token_is_refused(real: RealProvider) -> None:
    head, claims, signature = (await real.access_token(login="bob")).split(".")
    other = (await real.access_token(login="alice")).split(".")
    async with relying_party(real.settings(audience=AUDIENCE)) as khala:
        for parts in (
            (head, other[1], signature),
            (head, claims, other[2]),
            (head, claims, ""),
            (head, claims, signature[::-1]),
            (head, claims, signature[:-4]),
        ):
            with pytest.raises(Unauthorized):
                await khala.verify(".".join(parts))


def test_arbitrary_text_is_refused_as_a_token(real: RealProvider) -> None:
    """Also with a header that could be genuine, so that the keys are fetched."""
    with asyncio.Runner() as runner:
        valid = runner.run(real.access_token()).split(".")
        khala = OidcProvider(real.settings(audience=AUDIENCE))
        part = st.sampled_from(["", *valid, "e30", "bnVsbA"]) | st.text(max_size=50)
        headers = st.sampled_from(['{"alg":"RS256"}', '{"alg":"none"}', '{"alg":"ES256","kid":"x"}']).map(encoded)

        @settings(max_examples=200)
        @given(st.text() | st.builds("{}.{}.{}".format, headers | part, part, part))
        def holds(text: str) -> None:
            if text != ".".join(valid):
                with pytest.raises(Unauthorized):
                    runner.run(khala.verify(text))

        try:
            holds()
        finally:
            runner.run(khala.aclose())


def encoded(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


# Keys


async def test_rotated_keys_are_fetched_again() -> None:
    with running() as real:
        clock = Clock()
        async with relying_party(real.settings(audience=AUDIENCE), clock) as khala:
            before = await real.access_token()
            assert (await khala.verify(before)).subject == "alice"
            real.rotate_keys()
            clock.ahead = oidc.KEYS_MIN_AGE_SECONDS
            after = await real.access_token(login="bob")
            assert (await khala.verify(after)).subject == "bob"
            with pytest.raises(Unauthorized):
                await khala.verify(before)
            assert (await signed_in(khala, real)).subject == "alice"


async def test_unknown_key_ids_cause_a_bounded_number_of_requests(forger: Forger) -> None:
    clock = Clock()
    async with relying_party(forger.settings, clock) as believer:
        honest = forger.signed()
        await believer.verify(honest)
        strangers = [RSAKey.generate_key(2048, {"kid": "stranger"})]
        for _ in range(3):
            clock.ahead += oidc.KEYS_MIN_AGE_SECONDS
            tokens = [forger.signed(key=strangers[0], header={"kid": f"stranger-{number}"}) for number in range(50)]
            found = await asyncio.gather(*map(believer.verify, tokens), return_exceptions=True)
            assert {type(result) for result in found} == {Unauthorized}
        assert forger.request_counts["/jwks"] == 1 + 3
        assert (await believer.verify(honest)).subject == "alice"
        assert forger.request_counts["/jwks"] == 1 + 3


async def test_an_unsupported_key_does_not_affect_the_others(forger: Forger, trusting_khala: OidcProvider) -> None:
    keys = [{"kty": "AKP", "alg": "ML-DSA-44", "pub": "AAAA"}, {"kty": "RSA"}, forger.key.as_dict(private=False)]
    forger.answers["/jwks"] = Answer({"keys": keys})
    assert (await trusting_khala.verify(forger.signed())).subject == "alice"


async def test_one_of_two_keys_of_one_kind_must_be_named(forger: Forger, trusting_khala: OidcProvider) -> None:
    forger.others = [ECKey.generate_key("P-256", {"kid": "second"}), RSAKey.generate_key(2048, {"kid": "third"})]
    assert (await trusting_khala.verify(forger.signed(key=forger.others[0]))).subject == "alice"
    assert (await trusting_khala.verify(forger.signed(key=forger.others[1]))).subject == "alice"


# Providers that lie


async def test_a_forged_provider_without_deviations_is_accepted(forger: Forger, trusting_khala: OidcProvider) -> None:
    forger.id_token = forger.signed(email="A@b.org", email_verified=True, name=" Al\x00ice ")
    alice = await finish_sign_in(trusting_khala)
    assert alice.identity == Identity(issuer=forger.url, subject="alice", email="a@b.org", name="Alice")


@pytest.mark.parametrize("verified", [False, None, "true", 1, "false"])
async def test_email_verified_must_be_exactly_true(
    forger: Forger, trusting_khala: OidcProvider, verified: object
) -> None:
    forger.id_token = forger.signed(email="a@b.org", email_verified=verified)
    assert (await finish_sign_in(trusting_khala)).identity.email is None


@pytest.mark.parametrize("email", ["nobody", 5, ["a@b.org"], "a@b\x00.org"])
async def test_an_invalid_address_is_left_out(forger: Forger, trusting_khala: OidcProvider, email: object) -> None:
    forger.id_token = forger.signed(email=email, email_verified=True)
    found = await finish_sign_in(trusting_khala)
    assert (found.email, found.email_verified) == (None, False)


@pytest.mark.parametrize(
    "changed",
    [
        {"aud": "somebody"},
        {"aud": ["khala", "somebody"]},
        {"aud": ["khala", "somebody"], "azp": "somebody"},
        {"iss": "https://issuer.example"},
        {"exp": int(time.time()) - 61},
        {"nbf": int(time.time()) + 86_400},
        {"iat": int(time.time()) + 86_400},
        {"nonce": "another"},
        {"nonce": None},
        {"sub": None},
    ],
    ids=lambda changed: "-".join(changed),  # without the times, which differ between processes
)
async def test_an_id_token_that_was_not_meant_for_this_sign_in_is_refused(
    forger: Forger, trusting_khala: OidcProvider, changed: dict[str, Any]
) -> None:
    forger.id_token = forger.signed(**changed)
    with pytest.raises(Unauthorized):
        await finish_sign_in(trusting_khala)


@pytest.mark.parametrize("id_token", [None, "", "a.b.c", 5, {}])
async def test_a_sign_in_without_an_id_token_is_refused(
    forger: Forger, trusting_khala: OidcProvider, id_token: object
) -> None:
    forger.id_token = id_token
    with pytest.raises((Unauthorized, Unavailable)):
        await finish_sign_in(trusting_khala)


async def test_a_sign_in_with_user_info_of_another_subject_is_refused(
    forger: Forger, trusting_khala: OidcProvider
) -> None:
    offers = {**forger.discovery, "userinfo_endpoint": f"{forger.url}/me"}
    forger.answers[DISCOVERY] = Answer(offers)
    forger.id_token = forger.signed()
    forger.answers["/me"] = Answer({"sub": "alice", "email": "a@b.org", "email_verified": True})
    assert (await finish_sign_in(trusting_khala)).identity.email == "a@b.org"
    forger.answers["/me"] = Answer({"sub": "mallory", "email": "a@b.org", "email_verified": True})
    with pytest.raises(Unauthorized):
        await finish_sign_in(trusting_khala)


async def test_a_provider_with_client_secret_post_gets_the_secret_in_the_body(
    forger: Forger, trusting_khala: OidcProvider
) -> None:
    forger.answers[DISCOVERY] = Answer(
        {**forger.discovery, "token_endpoint_auth_methods_supported": ["client_secret_post", "private_key_jwt"]}
    )
    forger.id_token = forger.signed()
    await finish_sign_in(trusting_khala)
    assert "client_secret=secret" in forger.request_bodies["/token"]


@pytest.mark.parametrize(
    "changed",
    [
        {"issuer": "https://issuer.example"},
        {"issuer": None},
        {"token_endpoint": "http://issuer.example/token"},
        {"jwks_uri": "ftp://127.0.0.1/keys"},
        {"jwks_uri": "//"},
        {"end_session_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": "http://[/"},
    ],
    ids=str,
)
async def test_an_inconsistent_or_insecure_discovery_document_is_refused(
    forger: Forger, trusting_khala: OidcProvider, changed: dict[str, object]
) -> None:
    forger.answers[DISCOVERY] = Answer({**forger.discovery, **changed})
    with pytest.raises(Unavailable) as error:
        await trusting_khala.begin(CALLBACK)
    assert error.value.__cause__ is not None


def test_an_issuer_without_tls_beyond_loopback_is_refused() -> None:
    for issuer in ("http://issuer.example", "issuer.example", "http://127.0.0.1.example", "", "http://[::1"):
        with pytest.raises(ValueError, match="https://"):
            OidcProvider(OidcSettings(issuer=issuer, client_id="khala", name="Example"))
    for issuer in ("https://issuer.example", "http://localhost:1", "http://127.0.0.1:1", "http://[::1]:1"):
        OidcProvider(OidcSettings(issuer=issuer, client_id="khala", name="Example"))


# Providers that are unavailable


def unreachable_provider() -> OidcSettings:
    return OidcSettings(issuer=f"http://127.0.0.1:{free_port()}", client_id="khala", name="Example")


async def test_an_unreachable_provider_is_temporarily_unavailable() -> None:
    async with relying_party(unreachable_provider()) as khala:
        with pytest.raises(Unavailable, match="Example is unavailable") as error:
            await khala.begin(CALLBACK)
        assert (error.value.retry_after, type(error.value.__cause__)) == (
            oidc_http.RETRY_AFTER_SECONDS,
            httpx2.ConnectError,
        )


async def test_a_provider_is_asked_again_after_an_outage(forger: Forger) -> None:
    clock = Clock()
    forger.answers[DISCOVERY] = Answer(status=503)
    async with relying_party(forger.settings, clock) as khala:
        for _ in range(5):
            with pytest.raises(Unavailable) as error:
                await khala.begin(CALLBACK)
            assert error.value.retry_after is not None
            assert 9 < error.value.retry_after <= 10
        assert forger.request_counts[DISCOVERY] == 1, "the next request fails at once, without another call"
        del forger.answers[DISCOVERY]
        clock.ahead = 10
        assert (await khala.begin(CALLBACK)).url.startswith(forger.url)


@pytest.mark.parametrize("path", [DISCOVERY, "/jwks", "/token"])
@pytest.mark.parametrize(
    "answer",
    [
        Answer(status=500),
        Answer(status=404),
        Answer(b"<html>"),
        Answer(b"\xff\xfe"),
        Answer([]),
        Answer(b"[" * 100_000),
        Answer(status=302, headers={"location": "/elsewhere"}),
        Answer(b"\x1f\x8b", headers={"content-encoding": "gzip"}),
    ],
    ids=["error", "missing", "page", "binary", "list", "deep", "moved", "compressed"],
)
async def test_an_invalid_response_of_the_provider_is_unavailable(
    forger: Forger, trusting_khala: OidcProvider, path: str, answer: Answer
) -> None:
    forger.id_token = forger.signed()
    forger.answers[path] = answer
    with pytest.raises(Unavailable) as error:
        await finish_sign_in(trusting_khala)
    assert error.value.retry_after is not None
    assert error.value.__cause__ is not None
    assert forger.request_counts["/elsewhere"] == 0


@pytest.mark.parametrize("path", [DISCOVERY, "/jwks", "/token"])
async def test_a_response_of_the_provider_is_read_up_to_its_limit(
    forger: Forger, trusting_khala: OidcProvider, path: str
) -> None:
    forger.id_token = forger.signed()
    honest = msgspec.json.encode(forger.answer(path).body)
    forger.answers[path] = Answer(honest.ljust(oidc_http.MAX_RESPONSE_BYTES + 1))
    with pytest.raises(Unavailable) as error:
        await finish_sign_in(trusting_khala)
    assert isinstance(error.value.__cause__, httpx2.ReadError)


@pytest.mark.parametrize("path", [DISCOVERY, "/jwks", "/token"])
async def test_a_silent_provider_times_out(
    forger: Forger, trusting_khala: OidcProvider, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc_http, "CALL_TIMEOUT_SECONDS", 0.2)
    forger.id_token = forger.signed()
    forger.answers[path] = Answer(hold=(hold := asyncio.Event()))
    with pytest.raises(Unavailable) as error:
        await finish_sign_in(trusting_khala)
    assert isinstance(error.value.__cause__, TimeoutError)
    hold.set()


async def test_a_cancelled_request_does_not_cancel_others_that_share_its_fetch(
    forger: Forger, trusting_khala: OidcProvider
) -> None:
    forger.answers[DISCOVERY] = Answer(forger.discovery, hold=(hold := asyncio.Event()))
    async with asyncio.TaskGroup() as group:
        first, second = (group.create_task(trusting_khala.begin(CALLBACK)) for _ in range(2))
        await forger.wait_for_request(DISCOVERY)
        first.cancel()
        hold.set()
        assert (await second).url.startswith(forger.url)
