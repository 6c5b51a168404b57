"""Push notifications without I/O: the encryption of RFC 8291, the push services, and what follows from a response."""

from base64 import urlsafe_b64decode

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, derive_private_key

from khala.domain.errors import InvalidInput
from khala.domain.push import BACKOFF, MAX_ATTEMPTS, MAX_RETRY_AFTER_SECONDS, check_endpoint, judge
from khala.push.payload_encryption import MAX_PAYLOAD_BYTES, encrypt, encrypt_with

HOSTS = ("fcm.googleapis.com", "*.notify.windows.com", "127.0.0.1")


def decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


PUBLIC = decoded("BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4")
AUTH = decoded("BTBZMqHH6r4Tts7J_aSIgg")


def test_the_example_of_rfc_8291_is_encrypted_as_there() -> None:
    number = int.from_bytes(decoded("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"), "big")
    own_key, salt = derive_private_key(number, SECP256R1()), decoded("DGv6ra1nlYgDCS1FRnbzlw")
    assert encrypt_with(b"When I grow up, I want to be a watermelon", PUBLIC, AUTH, own_key, salt) == decoded(
        "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl"
        "7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
    )


def test_the_same_payload_is_never_encrypted_the_same_way() -> None:
    assert encrypt(b"x", PUBLIC, AUTH) != encrypt(b"x", PUBLIC, AUTH)


def test_a_payload_that_is_too_long_and_a_key_off_the_curve_are_refused() -> None:
    with pytest.raises(ValueError, match="3000"):
        encrypt(bytes(MAX_PAYLOAD_BYTES + 1), PUBLIC, AUTH)
    with pytest.raises(ValueError, match="EC key"):
        encrypt(b"x", b"\x04" + bytes(64), AUTH)


@pytest.mark.parametrize(
    "url",
    [
        "https://fcm.googleapis.com/fcm/send/x",
        "https://FCM.googleapis.com:443/x",
        "https://wns2.notify.windows.com/w/?token=x",
        "http://127.0.0.1:8080/push",
    ],
)
def test_endpoints_of_the_configured_push_services_are_accepted(url: str) -> None:
    check_endpoint(url, HOSTS)
    check_endpoint(url, ["*"])


@pytest.mark.parametrize(
    "url",
    [
        "http://fcm.googleapis.com/x",
        "https://fcm.googleapis.com.example.org/x",
        "https://fcm.googleapis.com@example.org/x",
        "https://notify.windows.com/x",
        "https://example.org/x",
        "https://localhost/x",
        "https:///x",
        "https://[/x",
        "ftp://fcm.googleapis.com/x",
        "fcm.googleapis.com",
    ],
)
def test_other_endpoints_are_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        check_endpoint(url, HOSTS)


@pytest.mark.parametrize(
    ("status", "state"),
    [
        *((status, "delivered") for status in (200, 201)),
        *((status, "gone") for status in (404, 410)),
        *((status, "refused") for status in (301, 400, 403, 413)),
        *((status, "retried") for status in (429, 500, 503, None)),
    ],
)
def test_a_response_says_what_follows(status: int | None, state: str) -> None:
    outcome = judge(status, attempts=1, retry_after=None, jitter=0.5)
    assert outcome.state == state
    assert (outcome.retry_seconds is not None) == (state == "retried")


def test_retries_are_bounded_and_wait_as_long_as_the_push_service_asks() -> None:
    assert judge(503, attempts=MAX_ATTEMPTS, retry_after=None, jitter=0.5).state == "failed"
    assert judge(403, attempts=MAX_ATTEMPTS, retry_after=None, jitter=0.5).state == "refused"
    assert judge(429, attempts=1, retry_after=120, jitter=0.5).retry_seconds == 120
    assert judge(429, attempts=1, retry_after=1e9, jitter=0.5).retry_seconds == MAX_RETRY_AFTER_SECONDS
    assert judge(503, attempts=3, retry_after=None, jitter=0.5).retry_seconds == BACKOFF.delay(3, 0.5)
