"""Encrypts secrets of others that Khala stores, with AES-256-GCM under keys of the operator.

The context is authenticated, too: a sealed secret that is copied to another row can't be opened there.
"""

import os
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
NONCE_BYTES = 12
VERSION = b"\x01"


class SecretError(Exception):
    """A sealed secret can't be opened: no key fits, or it was changed."""


class SecretBox:
    """Seals with the first key, and opens with any: a new key goes first, and an old one stays until it is unused."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._ciphers = [AESGCM(key) for key in keys]

    def seal(self, secret: bytes, context: bytes) -> bytes:
        """Encrypt for this context. Raises `SecretError` if there is no key."""
        if not self._ciphers:
            raise SecretError("There is no key.")
        nonce = os.urandom(NONCE_BYTES)
        return VERSION + nonce + self._ciphers[0].encrypt(nonce, secret, context)

    def open(self, sealed: bytes, context: bytes) -> bytes:
        """Decrypt what was sealed for the same context. Raises `SecretError`."""
        start = len(VERSION) + NONCE_BYTES
        if sealed[: len(VERSION)] == VERSION and len(sealed) > start:
            for cipher in self._ciphers:
                try:
                    return cipher.decrypt(sealed[len(VERSION) : start], sealed[start:], context)
                except InvalidTag:
                    continue
        raise SecretError("No key opens this secret.")
