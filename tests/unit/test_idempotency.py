"""The identity of completion requests: by idempotency key, or by content and requester."""

from uuid import UUID

import pytest

from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.errors import InvalidInput
from khala.domain.idempotency import KEY_LIFETIME, RETRY_WINDOW, RequestIdentity, identity

RELEVANT = ("x-autopilot", "x-thread-id")
USER, TOKEN, OTHER = ids.new(), ids.new(), ids.new()


def identity_of(body: bytes = b"{}", credential: UUID | None = TOKEN, **headers: str) -> RequestIdentity | None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    caller = Caller(user_id=USER, credential=credential)
    return identity(caller, body, named, RELEVANT, received=0.0, run_id=ids.new())


def known_identity(body: bytes = b"{}", credential: UUID | None = TOKEN, **headers: str) -> RequestIdentity:
    found = identity_of(body, credential, **headers)
    assert found is not None
    return found


def test_a_request_without_key_and_retry_count_has_no_identity() -> None:
    assert identity_of(x_autopilot="true") is None
    for count in ("", "-1", "one", "1.0", "٣", "1000"):
        assert identity_of(x_stainless_retry_count=count) is None
    nobody = identity(Caller(), b"", {"idempotency-key": "k"}, RELEVANT, received=0.0, run_id=ids.new())
    assert nobody is None


def test_retries_and_keys_are_looked_up_and_first_attempts_are_not() -> None:
    assert not known_identity(x_stainless_retry_count="0").may_be_known
    assert known_identity(x_stainless_retry_count="1").may_be_known
    assert known_identity(idempotency_key="k").may_be_known


def test_a_request_is_remembered_for_the_duration_of_its_kind() -> None:
    assert known_identity(idempotency_key="k", x_stainless_retry_count="1").lifetime == KEY_LIFETIME
    assert known_identity(x_stainless_retry_count="1").lifetime == RETRY_WINDOW


def test_the_identity_depends_on_everything_that_changes_the_request_and_nothing_else() -> None:
    same = known_identity(x_stainless_retry_count="0", user_agent="one")
    assert known_identity(x_stainless_retry_count="2", user_agent="two").fingerprint == same.fingerprint
    others = [
        known_identity(b"{ }", x_stainless_retry_count="0"),
        known_identity(credential=OTHER, x_stainless_retry_count="0"),
        known_identity(x_stainless_retry_count="0", x_autopilot="true"),
        known_identity(x_stainless_retry_count="0", x_thread_id="true"),
        known_identity(x_stainless_retry_count="0", x_autopilot='true","x-thread-id:true'),
        known_identity(x_stainless_retry_count="0", x_autopilot="true", x_thread_id="true"),
    ]
    assert len({same.fingerprint, *(other.fingerprint for other in others)}) == len(others) + 1


def test_a_key_applies_to_all_tokens_of_an_account() -> None:
    first, other = known_identity(idempotency_key="k"), known_identity(idempotency_key="k", credential=OTHER)
    assert (first.key_hash, first.fingerprint) == (other.key_hash, other.fingerprint)
    assert known_identity(idempotency_key="K").key_hash != first.key_hash


@pytest.mark.parametrize("key", ["", "x" * 256, "é", "a\tb", "a\x00"])
def test_a_key_has_printable_ascii_characters(key: str) -> None:
    with pytest.raises(InvalidInput):
        identity_of(idempotency_key=key)
