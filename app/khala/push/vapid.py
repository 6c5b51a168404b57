"""Identifies this server to push services: VAPID, RFC 8292."""

import time
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from joserfc import jwt
from joserfc.jwk import ECKey

LIFETIME_SECONDS = 12 * 3600
"""Lifetime of a token. A push service refuses one that expires in more than 24 hours."""


class Vapid:
    """The server's identity. `public_key` is what browsers subscribe with, in base64url.

    `contact`: the address under which a push service may reach the operator, `mailto:` or `https:`.
    """

    def __init__(self, private_key: EllipticCurvePrivateKey, public_key: str, contact: str | None) -> None:
        self.public_key = public_key
        self._key = ECKey.import_key(private_key)
        self._contact = contact

    def authorization(self, endpoint: str) -> str:
        """The value of `Authorization` for a request to this endpoint."""
        parts = urlsplit(endpoint)
        claims: dict[str, object] = {
            "aud": f"{parts.scheme}://{parts.netloc}",
            "exp": int(time.time()) + LIFETIME_SECONDS,
        }
        if self._contact is not None:
            claims["sub"] = self._contact
        token = jwt.encode({"typ": "JWT", "alg": "ES256"}, claims, self._key)
        return f"vapid t={token}, k={self.public_key}"
