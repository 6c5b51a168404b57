"""Access decisions for threads, as laws."""

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from khala.domain.access import (
    POLICY,
    RANKS,
    AccessFacts,
    Action,
    Caller,
    as_requester,
    author_id_of_key,
    decide_access,
    hashes_match,
    key_hash,
    presented_key_id,
    validated_anon_key,
)
from khala.domain.errors import Forbidden, InvalidInput

USERS = [UUID(int=number) for number in range(1, 4)]
HASHES = [key_hash(name) for name in ("a", "b", "c")]
NOON = datetime(2026, 1, 1, tzinfo=UTC)

users = st.none() | st.sampled_from(USERS)
hashes = st.none() | st.sampled_from(HASHES)
times = st.none() | st.integers(0, 5).map(lambda hours: NOON + timedelta(hours=hours))
roles = st.none() | st.sampled_from(list(RANKS))
facts_of_threads = st.builds(
    AccessFacts, access_id=st.sampled_from(USERS), owner_id=users, anon_key_hash=hashes, public=st.booleans(),
    member_role=roles,
    link_role=st.sampled_from([None, "viewer", "editor"]), link_expires_at=times, credential_valid=st.booleans(),
    invited=st.booleans(),
)  # fmt: skip
callers = st.builds(
    Caller, user_id=users, name=st.none() | st.text(max_size=5), credential=users, expires_at=times,
    anon_key_hash=hashes, share_key_hash=hashes, network=st.sampled_from([None, "127.0.0.0/24", "203.0.113.0/24"]),
)  # fmt: skip


def applicable_grants(facts: AccessFacts, caller: Caller) -> list[tuple[int, datetime | None]]:
    """Each kind of access that applies, by itself: its rank, and its expiry."""
    known = caller.user_id is not None and facts.credential_valid
    ways: list[tuple[str | None, bool, datetime | None]] = [
        ("owner", known and facts.owner_id == caller.user_id, caller.expires_at),
        (facts.member_role, known, caller.expires_at),
        ("viewer", known and facts.invited, caller.expires_at),
        ("owner", facts.anon_key_hash is not None and facts.anon_key_hash == caller.anon_key_hash, None),
        (facts.link_role, True, facts.link_expires_at),
        ("viewer", facts.public, None),
    ]
    return [(RANKS[role], ends) for role, fits, ends in ways if role is not None and fits]  # type: ignore[index]


@given(facts_of_threads, callers)
def test_access_is_the_highest_role_that_applies_and_never_more(facts: AccessFacts, caller: Caller) -> None:
    found, ways = decide_access(facts, caller), applicable_grants(facts, caller)
    assert (found.role is None) == (not ways)
    assert (found.caller, found.access_id) == (caller, facts.access_id)
    if found.role is not None:
        assert RANKS[found.role] == max(rank for rank, _ in ways)
        assert (RANKS[found.role], found.expires_at) in ways


@given(facts_of_threads, callers)
def test_access_never_lasts_longer_than_a_grant_of_its_role(facts: AccessFacts, caller: Caller) -> None:
    found = decide_access(facts, caller)
    if found.role is not None:
        ends = [end for rank, end in applicable_grants(facts, caller) if rank == RANKS[found.role]]
        assert found.expires_at == (None if None in ends else max(end for end in ends if end))


@given(facts_of_threads, callers)
def test_a_private_thread_needs_a_valid_credential_or_secret(facts: AccessFacts, caller: Caller) -> None:
    private = replace(facts, public=False, link_role=None)
    assert decide_access(private, replace(caller, user_id=None, anon_key_hash=None, share_key_hash=None)).role is None
    assert decide_access(replace(private, credential_valid=False), replace(caller, anon_key_hash=None)).role is None


@given(facts_of_threads, callers)
def test_a_caller_with_no_account_and_no_key_has_no_access_to_a_thread_with_neither(
    facts: AccessFacts, caller: Caller
) -> None:
    nobodys = replace(facts, owner_id=None, anon_key_hash=None, member_role=None, public=False, link_role=None)
    assert decide_access(replace(nobodys, invited=False), caller).role is None


@given(facts_of_threads, callers)
def test_an_invitation_grants_its_user_only_read_access(facts: AccessFacts, caller: Caller) -> None:
    without, invited = (
        decide_access(replace(facts, invited=False), caller),
        decide_access(replace(facts, invited=True), caller),
    )
    if without.role is not None:
        assert invited.role == without.role
    elif invited.role is not None:
        assert (invited.role, caller.user_id is not None, facts.credential_valid) == ("viewer", True, True)


@given(facts_of_threads, callers)
def test_an_action_is_allowed_to_its_role_and_those_above(facts: AccessFacts, caller: Caller) -> None:
    found = decide_access(facts, caller)
    assert POLICY.keys() == set(Action)
    for action, needed in POLICY.items():
        assert found.allows(action) == (found.role is not None and RANKS[found.role] >= RANKS[needed])
        with nullcontext() if found.allows(action) else pytest.raises(Forbidden):
            found.require(action)


@given(callers, users, hashes)
def test_the_requester_of_a_run_is_its_user_or_without_one_the_same_key(
    caller: Caller, user_id: UUID | None, key: bytes | None
) -> None:
    requester = as_requester(caller, user_id, None if key is None else author_id_of_key(key))
    if user_id is not None:
        assert (requester is not None) == (caller.user_id == user_id)
    else:
        assert (requester is not None) == (key is not None and key in (caller.anon_key_hash, caller.share_key_hash))
    if requester is not None:
        # No other credential of the caller grants the right.
        assert requester.user_id == user_id
        assert {requester.anon_key_hash, requester.share_key_hash} <= {key, None}
        assert key is None or (key in (requester.anon_key_hash, requester.share_key_hash)) == (
            key in (caller.anon_key_hash, caller.share_key_hash)
        )


@given(callers, hashes)
def test_the_key_that_grants_access_is_the_requesters_key(caller: Caller, anon: bytes | None) -> None:
    shown = presented_key_id(caller, anon)
    if hashes_match(anon, caller.anon_key_hash):
        assert caller.anon_key_hash is not None
        assert shown == author_id_of_key(caller.anon_key_hash)
    elif caller.share_key_hash is not None:
        assert shown == author_id_of_key(caller.share_key_hash)
    elif caller.anon_key_hash is None:
        assert shown is None


@given(facts_of_threads, callers, callers)
def test_additional_credentials_never_reduce_access(facts: AccessFacts, caller: Caller, other: Caller) -> None:
    less = decide_access(facts, replace(caller, anon_key_hash=None))
    more = decide_access(facts, replace(caller, anon_key_hash=other.anon_key_hash))
    assert less.role is None or (more.role is not None and RANKS[more.role] >= RANKS[less.role])


@given(hashes, hashes)
def test_only_the_same_key_grants_access(stored: bytes | None, presented: bytes | None) -> None:
    assert hashes_match(stored, presented) == (stored is not None and stored == presented)


@given(st.text(), st.text())
def test_distinct_keys_have_distinct_hashes_and_author_ids(one: str, other: str) -> None:
    assert (key_hash(one) == key_hash(other)) == (one == other)
    assert (author_id_of_key(key_hash(one)) == author_id_of_key(key_hash(other))) == (one == other)


@pytest.mark.parametrize("key", ["k" * 31, "k" * 257, " " * 40, " " + "k" * 31, "k" * 31 + "\t"])
def test_surrounding_space_does_not_count_towards_the_length_of_a_key(key: str) -> None:
    with pytest.raises(InvalidInput):
        validated_anon_key(key)


@pytest.mark.parametrize("length", [32, 256])
def test_keys_of_the_minimum_and_maximum_length_are_valid(length: int) -> None:
    assert validated_anon_key("k" * length) == "k" * length
