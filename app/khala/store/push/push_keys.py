"""The key by which push services recognise this deployment (VAPID). It is created when it is needed first."""

from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    derive_private_key,
    generate_private_key,
)

from khala.store.postgres import server_keys
from khala.store.postgres.database import Database

KEY_BYTES = 32


async def read(db: Database) -> EllipticCurvePrivateKey:
    """Return the deployment's key, on the curve P-256."""
    stored = await server_keys.read_or_create(db, "push_keys", _new_key)
    return derive_private_key(int.from_bytes(stored, "big"), SECP256R1())


def _new_key() -> bytes:
    number = generate_private_key(SECP256R1()).private_numbers().private_value
    return number.to_bytes(KEY_BYTES, "big")
