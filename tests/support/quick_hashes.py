"""Has Khala hash passwords with the lowest parameters: a hash of a deployment takes a quarter of a second of a core.

The tests of the parameters themselves, and of what happens while a password is hashed, use `full_hashes`.
"""

import contextlib
from collections.abc import Iterator

from argon2 import PasswordHasher

from khala.identity import passwords

QUICK = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
FULL, FULL_DUMMY = passwords._HASHER, passwords.DUMMY_HASH


def install() -> None:
    """Hash with these parameters from now on in this process, also for unknown accounts."""
    passwords._HASHER, passwords.DUMMY_HASH = QUICK, QUICK.hash("an unknown password")


@contextlib.contextmanager
def full_hashes() -> Iterator[None]:
    """Hash as a deployment does for as long as this is open."""
    quick = passwords._HASHER, passwords.DUMMY_HASH
    passwords._HASHER, passwords.DUMMY_HASH = FULL, FULL_DUMMY
    try:
        yield
    finally:
        passwords._HASHER, passwords.DUMMY_HASH = quick
