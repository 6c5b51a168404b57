"""Encrypts the payload of a notification for one browser: RFC 8291, with the content coding `aes128gcm` of RFC 8188."""

import os

from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDH,
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

SALT_BYTES = 16
RECORD_BYTES = 4096
"""The record size in the header. Push services accept bodies of 4,096 bytes."""
MAX_PAYLOAD_BYTES = 3000
LAST_RECORD = b"\x02"
"""The delimiter after the text of the last record."""


def encrypt(payload: bytes, public_key: bytes, auth: bytes) -> bytes:
    """Encrypt for the browser with this public key (P-256, uncompressed) and authentication secret.

    Raises `ValueError` if the key is not on the curve, or the payload is longer than `MAX_PAYLOAD_BYTES`.
    """
    return encrypt_with(payload, public_key, auth, generate_private_key(SECP256R1()), os.urandom(SALT_BYTES))


def encrypt_with(
    payload: bytes, public_key: bytes, auth: bytes, own_key: EllipticCurvePrivateKey, salt: bytes
) -> bytes:
    """As `encrypt`, with a key and a salt that are used for no other payload."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"A payload has at most {MAX_PAYLOAD_BYTES} bytes.")
    browser_key = EllipticCurvePublicKey.from_encoded_point(SECP256R1(), public_key)
    own_public = public_bytes(own_key.public_key())
    shared = own_key.exchange(ECDH(), browser_key)
    secret = _derived(shared, auth, b"WebPush: info\0" + public_key + own_public, 32)
    content_key = _derived(secret, salt, b"Content-Encoding: aes128gcm\0", 16)
    nonce = _derived(secret, salt, b"Content-Encoding: nonce\0", 12)
    encrypted = AESGCM(content_key).encrypt(nonce, payload + LAST_RECORD, None)
    return salt + RECORD_BYTES.to_bytes(4, "big") + bytes([len(own_public)]) + own_public + encrypted


def public_bytes(key: EllipticCurvePublicKey) -> bytes:
    """The public key as an uncompressed point."""
    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def _derived(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(SHA256(), length, salt, info).derive(secret)
