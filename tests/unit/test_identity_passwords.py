"""Passwords and e-mail addresses."""

import asyncio
import time
from collections.abc import Iterator

import pytest
from argon2 import extract_parameters, profiles
from hypothesis import given
from hypothesis import strategies as st

from khala.domain.errors import InvalidInput, RateLimited
from khala.identity import passwords
from khala.identity.passwords import hash_password, needs_rehash, normalized_email, validated_password, verify_password
from tests.support.quick_hashes import full_hashes

GOOD = "a wonderful day"


@pytest.fixture(autouse=True, scope="module")
def _full_hashes() -> Iterator[None]:
    with full_hashes():
        yield


async def test_a_password_matches_its_own_hash_and_no_other() -> None:
    stored = await hash_password(GOOD)
    assert await verify_password(GOOD, stored)
    assert not await verify_password("a terrible day", stored)
    assert stored != await hash_password(GOOD), "each hash has its own salt"


async def test_no_password_matches_an_unknown_account() -> None:
    assert not await verify_password(GOOD, None)
    assert not await verify_password("", None)


async def test_an_invalid_hash_matches_no_password() -> None:
    assert not await verify_password(GOOD, "!")


def test_an_unknown_account_is_compared_with_a_hash_of_the_current_parameters() -> None:
    assert not needs_rehash(passwords.DUMMY_HASH)
    assert extract_parameters(passwords.DUMMY_HASH) == profiles.RFC_9106_LOW_MEMORY


def test_a_hash_of_older_parameters_needs_a_rehash() -> None:
    assert needs_rehash(passwords.DUMMY_HASH.replace("t=3", "t=2"))


async def test_a_password_is_normalised_in_unicode() -> None:
    composed, decomposed = "caf\u00e9 au lait", "cafe\u0301 au lait"
    assert await verify_password(decomposed, await hash_password(composed))


async def test_the_event_loop_continues_while_a_password_is_hashed() -> None:
    hashing = asyncio.ensure_future(hash_password(GOOD))
    turns = 0
    while not hashing.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 10
    await hashing


async def test_too_many_concurrent_hashes_are_refused() -> None:
    taken = 0
    while passwords._SLOTS.acquire(blocking=False):
        taken += 1
    try:
        began = time.monotonic()
        with pytest.raises(RateLimited) as error:
            await hash_password(GOOD)
        assert error.value.retry_after is not None
        assert time.monotonic() - began < 1
    finally:
        passwords._SLOTS.release(taken)
    assert taken == passwords.MAX_WAITING
    assert await verify_password(GOOD, await hash_password(GOOD))


@pytest.mark.parametrize("password", [GOOD, "x" * 7 + "y", "correct horse", "пароль-пароль", "ab" * 512])
def test_a_strong_password_is_accepted_unchanged(password: str) -> None:
    assert validated_password(password) == password


@pytest.mark.parametrize(
    "password",
    ["", "short", "x" * 6 + "y", "ab" * 512 + "c", "aaaaaaaaaaaa", "1234567890", "Password123", "QWERTYUIOP"],
)
def test_a_common_or_short_password_is_refused(password: str) -> None:
    with pytest.raises(InvalidInput) as error:
        validated_password(password)
    assert error.value.path == "password"


def test_every_common_password_is_long_enough_to_be_worth_listing() -> None:
    assert all(
        len(password) >= passwords.MIN_PASSWORD_CHARACTERS and password == password.lower()
        for password in passwords.COMMON_PASSWORDS
    )


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("alice@example.org", "alice@example.org"),
        ("  Alice@Example.ORG\n", "alice@example.org"),
        ("ａｌｉｃｅ＠example.org", "alice@example.org"),
        ("jörg@bücher.example", "jörg@bücher.example"),
        ("a+b@localhost", "a+b@localhost"),
    ],
)
def test_an_address_is_normalised(text: str, address: str) -> None:
    assert normalized_email(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "@",
        "alice",
        "alice@",
        "@example.org",
        "a@b@c",
        "al ice@example.org",
        "a\x00@b",
        "a@b\u200b",
        "a" * 251 + "@b.c",
    ],
)
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as error:
        normalized_email(text)
    assert error.value.path == "email"


addresses = st.builds("{}@{}".format, st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))


@given(st.text() | addresses)
def test_normalisation_is_idempotent(text: str) -> None:
    try:
        address = normalized_email(text)
    except InvalidInput:
        return
    assert normalized_email(address) == address
    if address.isascii():  # other upper case is not reversible: ß becomes SS
        assert normalized_email(address.upper()) == address
    assert address.count("@") == 1
