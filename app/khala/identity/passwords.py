"""Password hashing with argon2id, and the normal form of e-mail addresses."""

import asyncio
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import BoundedSemaphore
from typing import TypeVar

from argon2 import PasswordHasher, profiles
from argon2.exceptions import InvalidHashError, VerifyMismatchError

from khala.domain.errors import InvalidInput, RateLimited, ReachedLimit

MIN_PASSWORD_CHARACTERS = 8
MAX_PASSWORD_CHARACTERS = 1024
"""Characters of a password."""
MAX_EMAIL_CHARACTERS = 254
"""Characters; RFC 3696, erratum 1690."""
HASH_THREADS = 4
"""Concurrent hashes, each with 64 MiB of memory."""
MAX_WAITING = 64
"""Hashes that are queued or in progress. Further calls are refused."""

# Three passes over 64 MiB in four lanes: the second recommendation of RFC 9106, section 4, for limited memory.
_HASHER = PasswordHasher.from_parameters(profiles.RFC_9106_LOW_MEMORY)
DUMMY_HASH = "$argon2id$v=19$m=65536,t=3,p=4$k/K99z80FwE2epB+5j+hdw$aTDs4nfYHWYQ9y7K5d4ve1OvVncmlKh4C5+cNkxBQkU"
"""The hash to compare with if there is no account. It is of an unknown password, with the same parameters."""

# Common passwords that attackers try first.
_COMMON = """
12345678 123456789 87654321 12341234 1q2w3e4r 1qaz2wsx abc12345 abcd1234 admin123 baseball football iloveyou
letmein1 passw0rd password password1 princess qwer1234 qwertyui qwerty12 qwerty123 starwars sunshine superman
trustno1 welcome1 zaq12wsx
0123456789 01234567890 0987654321 1122334455 1111122222 1234512345 1234567890 12345678900 12345678910 123456789a
123456789q 123123123123 1q2w3e4r5t 1q2w3e4r5t6y 1qaz2wsx3edc 1qazxsw23edc 9876543210 a123456789 a1234567890
abc1234567 abcd123456 abcdefghij abcdefghijk administrator asdfghjkl1 asdfghjkl; baseball123 changeme123
changeme1234 computer123 football123 iloveyou12 iloveyou123 letmein123 letmein1234 michael123 monkey1234
p@ssw0rd123 passw0rd123 password01 password12 password123 password1234 password12345 passwordpassword
princess123 q1w2e3r4t5 q1w2e3r4t5y6 qazwsxedcrfv qwer123456 qwerty1234 qwerty12345 qwerty123456 qwertyuiop
qwertyuiop[] sunshine123 superman123 welcome123 welcome1234 zaq12wsxcde3 zxcvbnm123 zxcvbnm,./
"""
COMMON_PASSWORDS = frozenset(_COMMON.split())

# Unlike asyncio's semaphores, neither is bound to an event loop.
_THREADS = ThreadPoolExecutor(HASH_THREADS, thread_name_prefix="passwords")
_SLOTS = BoundedSemaphore(MAX_WAITING)

T = TypeVar("T")


async def hash_password(password: str) -> str:
    """The hash to store for the password. Raises RateLimited if too many are being hashed."""
    return await _run_in_thread(lambda: _HASHER.hash(_bytes(password)))


async def verify_password(password: str, stored: str | None) -> bool:
    """Whether `stored` is this password's hash.

    None never matches, but takes as long, so that the response time does not reveal which accounts exist. Raises
    RateLimited if too many are being hashed.
    """
    return await _run_in_thread(lambda: _verified(password, stored))


def needs_rehash(stored: str) -> bool:
    """Whether the hash was made with other parameters than today's."""
    return _HASHER.check_needs_rehash(stored)


def validated_password(password: str, *, path: str = "password") -> str:
    """The password, if it is acceptable. Raises InvalidInput for `path` otherwise."""
    if not MIN_PASSWORD_CHARACTERS <= len(_composed(password)) <= MAX_PASSWORD_CHARACTERS:
        raise InvalidInput(
            f"A password must have {MIN_PASSWORD_CHARACTERS} to {MAX_PASSWORD_CHARACTERS} characters.", path=path
        )
    if len(set(password)) == 1 or password.lower() in COMMON_PASSWORDS:
        raise InvalidInput("This password is too easy to guess. Choose another one.", path=path)
    return password


def normalized_email(text: str) -> str:
    """The normal form in which an e-mail address is stored and compared. Raises InvalidInput for anything else."""
    # Lower-casing may undo the normalization, so it is repeated.
    address = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).lower()).strip()
    user, _, host = address.partition("@")
    if not user or not host or "@" in host or len(address) > MAX_EMAIL_CHARACTERS or any(map(_is_forbidden, address)):
        raise InvalidInput("This is not an e-mail address.", path="email")
    return address


def _is_forbidden(character: str) -> bool:
    """Whether the character is a space, a control character, or unassigned."""
    return unicodedata.category(character)[0] in "CZ"


def _verified(password: str, stored: str | None) -> bool:
    try:
        _HASHER.verify(DUMMY_HASH if stored is None else stored, _bytes(password))
    except (VerifyMismatchError, InvalidHashError):
        return False
    return stored is not None


def _composed(password: str) -> str:
    """The password in normal form (RFC 8265, section 4.2), because keyboards send accents differently."""
    return unicodedata.normalize("NFC", password)


def _bytes(password: str) -> bytes:
    return _composed(password).encode("utf-8", "surrogatepass")


async def _run_in_thread(work: Callable[[], T]) -> T:
    if not _SLOTS.acquire(blocking=False):
        limit = ReachedLimit("password_checks", "deployment", MAX_WAITING)
        raise RateLimited("Too many people are signing in at once. Please try again.", limit=limit, retry_after=2.0)
    try:
        return await asyncio.get_running_loop().run_in_executor(_THREADS, work)
    finally:
        _SLOTS.release()
