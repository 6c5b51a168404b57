"""The key by which push services recognise this deployment (VAPID). It is created when it is needed first."""

from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    derive_private_key,
    generate_private_key,
)

from khala.store.postgres.database import Database

READ = "SELECT private_key FROM push_keys ORDER BY created_at DESC, id LIMIT 1"
INSERT = "INSERT INTO push_keys (id, private_key) VALUES ('first', $1) ON CONFLICT DO NOTHING"
KEY_BYTES = 32


async def read(db: Database) -> EllipticCurvePrivateKey:
    """Return the deployment's key, on the curve P-256."""
    async with db.driver() as driver:
        stored = await driver.fetchval(READ)
        if stored is None:
            number = generate_private_key(SECP256R1()).private_numbers().private_value
            await driver.execute(INSERT, number.to_bytes(KEY_BYTES, "big"))
            stored = await driver.fetchval(READ)
    return derive_private_key(int.from_bytes(stored, "big"), SECP256R1())
