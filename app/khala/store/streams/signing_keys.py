"""The key with which a deployment signs its requests to webhooks. It is created when it is needed first."""

import hashlib
from base64 import urlsafe_b64encode

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from khala.store.postgres import server_keys
from khala.store.postgres.database import Database

ID_CHARACTERS = 16


class SigningKey:
    """An Ed25519 key. `key_id` names it, and `jwk` is its public half as a JSON Web Key."""

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        public = private_key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self._private_key = private_key
        self.key_id = f"ds_{hashlib.sha256(public).hexdigest()[:ID_CHARACTERS]}"
        self.jwk = {
            "kty": "OKP",
            "crv": "Ed25519",
            "alg": "EdDSA",
            "use": "sig",
            "kid": self.key_id,
            "x": _base64url(public),
        }

    def signature(self, body: bytes, timestamp: int) -> str:
        """Return the value of `Webhook-Signature` for a body that is sent at this time, in seconds since 1970."""
        signed = self._private_key.sign(b"%d.%b" % (timestamp, body))
        return f"t={timestamp},kid={self.key_id},ed25519={_base64url(signed)}"


async def read(db: Database) -> SigningKey:
    """Return the deployment's key."""
    seed = await server_keys.read_or_create(db, "stream_signing_keys", _new_seed)
    return SigningKey(Ed25519PrivateKey.from_private_bytes(seed))


def _new_seed() -> bytes:
    return Ed25519PrivateKey.generate().private_bytes_raw()


def _base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
