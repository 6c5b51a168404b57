"""What opens a thread: by law, not by example only."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from khala.domain.access import (
    RANKS,
    Caller,
    Doors,
    as_requester,
    author_id_of_key,
    grant,
    hashes_match,
    key_hash,
    presented_key_id,
    validated_anon_key,
)
from khala.domain.errors import InvalidInput

USERS = [UUID(int=number) for number in range(1, 4)]
HASHES = [key_hash(name) for name in ("a", "b", "c")]
NOON = datetime(2026, 1, 1, tzinfo=UTC)

users = st.none() | st.sampled_from(USERS)
hashes = st.none() | st.sampled_from(HASHES)
times = st.none() | st.integers(0, 5).map(lambda hours: NOON + timedelta(hours=hours))
roles = st.none() | st.sampled_from(list(RANKS))
doors = st.builds(
    Doors, owner_id=users, anon_key_hash=hashes, public=st.booleans(), member_role=roles,
    link_role=st.sampled_from([None, "viewer", "editor"]), link_expires_at=times, credential_stands=st.booleans(),
    invited=st.booleans(),
)  # fmt: skip
callers = st.builds(
    Caller, user_id=users, name=st.none() | st.text(max_size=5), credential=users, expires_at=times,
    anon_key_hash=hashes, share_key_hash=hashes, network=st.sampled_from([None, "127.0.0.0/24", "203.0.113.0/24"]),
)  # fmt: skip


def fitting(found: Doors, caller: Caller) -> list[tuple[int, datetime | None]]:
    """Every door that fits, by itself: its rank, and when it closes."""
    known = caller.user_id is not None and found.credential_stands
    ways: list[tuple[str | None, bool, datetime | None]] = [
        ("owner", known and found.owner_id == caller.user_id, caller.expires_at),
        (found.member_role, known, caller.expires_at),
        ("viewer", known and found.invited, caller.expires_at),
        ("owner", found.anon_key_hash is not None and found.anon_key_hash == caller.anon_key_hash, None),
        (found.link_role, True, found.link_expires_at),
        ("viewer", found.public, None),
    ]
    return [(RANKS[role], ends) for role, fits, ends in ways if role is not None and fits]  # type: ignore[index]


@given(doors, callers)
def test_a_grant_is_the_best_door_that_fits_and_never_more(found: Doors, caller: Caller) -> None:
    given_, ways = grant(found, caller), fitting(found, caller)
    assert (given_ is None) == (not ways)
    if given_ is not None:
        assert RANKS[given_.role] == max(rank for rank, _ in ways)
        assert (RANKS[given_.role], given_.expires_at) in ways


@given(doors, callers)
def test_a_grant_never_lasts_longer_than_a_door_of_its_role(found: Doors, caller: Caller) -> None:
    given_ = grant(found, caller)
    if given_ is not None:
        ends = [end for rank, end in fitting(found, caller) if rank == RANKS[given_.role]]
        assert given_.expires_at == (None if None in ends else max(end for end in ends if end))


@given(doors, callers)
def test_nothing_that_a_caller_is_opens_a_private_thread_without_a_secret(found: Doors, caller: Caller) -> None:
    private = replace(found, public=False, link_role=None)
    assert grant(private, replace(caller, user_id=None, anon_key_hash=None, share_key_hash=None)) is None
    assert grant(replace(private, credential_stands=False), replace(caller, anon_key_hash=None)) is None


@given(doors, callers)
def test_a_thread_without_an_owner_and_a_key_is_not_opened_by_having_neither(found: Doors, caller: Caller) -> None:
    nobodys = replace(found, owner_id=None, anon_key_hash=None, member_role=None, public=False, link_role=None)
    assert grant(replace(nobodys, invited=False), caller) is None


@given(doors, callers)
def test_an_invitation_lets_its_user_read_and_nothing_else(found: Doors, caller: Caller) -> None:
    without, invited = grant(replace(found, invited=False), caller), grant(replace(found, invited=True), caller)
    if without is not None:
        assert invited is not None
        assert invited.role == without.role
    elif invited is not None:
        assert (invited.role, caller.user_id is not None, found.credential_stands) == ("viewer", True, True)


@given(callers, users, hashes)
def test_the_asker_of_a_run_is_its_user_or_without_one_the_same_key(
    caller: Caller, user_id: UUID | None, key: bytes | None
) -> None:
    asker = as_requester(caller, user_id, None if key is None else author_id_of_key(key))
    if user_id is not None:
        assert (asker is not None) == (caller.user_id == user_id)
    else:
        assert (asker is not None) == (key is not None and key in (caller.anon_key_hash, caller.share_key_hash))
    if asker is not None:
        # Nothing else that the caller showed can lend them the right.
        assert asker.user_id == user_id
        assert {asker.anon_key_hash, asker.share_key_hash} <= {key, None}
        assert key is None or (key in (asker.anon_key_hash, asker.share_key_hash)) == (
            key in (caller.anon_key_hash, caller.share_key_hash)
        )


@given(callers, hashes)
def test_the_key_that_opens_a_thread_is_the_one_by_which_its_holder_asks(caller: Caller, anon: bytes | None) -> None:
    shown = presented_key_id(caller, anon)
    if hashes_match(anon, caller.anon_key_hash):
        assert caller.anon_key_hash is not None
        assert shown == author_id_of_key(caller.anon_key_hash)
    elif caller.share_key_hash is not None:
        assert shown == author_id_of_key(caller.share_key_hash)
    elif caller.anon_key_hash is None:
        assert shown is None


@given(doors, callers, callers)
def test_to_show_more_never_opens_less(found: Doors, caller: Caller, other: Caller) -> None:
    less = grant(found, replace(caller, anon_key_hash=None))
    more = grant(found, replace(caller, anon_key_hash=other.anon_key_hash))
    assert less is None or (more is not None and RANKS[more.role] >= RANKS[less.role])


@given(hashes, hashes)
def test_only_the_same_key_opens(stored: bytes | None, presented: bytes | None) -> None:
    assert hashes_match(stored, presented) == (stored is not None and stored == presented)


@given(st.text(), st.text())
def test_keys_have_hashes_and_authors_of_their_own(one: str, other: str) -> None:
    assert (key_hash(one) == key_hash(other)) == (one == other)
    assert (author_id_of_key(key_hash(one)) == author_id_of_key(key_hash(other))) == (one == other)


@pytest.mark.parametrize("key", ["k" * 31, "k" * 257, " " * 40, " " + "k" * 31, "k" * 31 + "\t"])
def test_space_makes_no_key_longer(key: str) -> None:
    with pytest.raises(InvalidInput):
        validated_anon_key(key)


@pytest.mark.parametrize("length", [32, 256])
def test_a_key_of_the_least_and_of_the_most_characters_is_one(length: int) -> None:
    assert validated_anon_key("k" * length) == "k" * length
