"""The credentials of a client, and the headers that carry them."""

import asyncio
import base64
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from khala_client.errors import InvalidSetting

TokenProvider: TypeAlias = Callable[[], str | Awaitable[str]]
"""Returns a bearer token that is valid now. It is called again when the token expires or is refused."""

REFRESH_BEFORE_SECONDS = 30.0
"""A JWT is replaced so long before its `exp`."""
PROVIDER_TIMEOUT_SECONDS = 30.0


def check_secret(name: str, value: str) -> None:
    """Raise `InvalidSetting` if the value does not fit into a header.

    Examples are a placeholder that was copied, such as `…`, and a value that was read with the end of its line.
    """
    wrong = next((one for one in value if not "!" <= one <= "~"), None)
    if wrong is not None or not value:
        reason = "is empty" if wrong is None else f"contains {wrong!r}"
        hint = "" if wrong is None or wrong.isascii() else " Replace the placeholder of the example."
        raise InvalidSetting(
            f"{name} consists of printable ASCII characters without spaces, but this one {reason}.{hint}"
        )


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """Secrets that open threads without an account: an anonymous key, and the key of a share link."""

    anon_key: str | None = None
    share_key: str | None = None

    def __post_init__(self) -> None:
        for name in ("anon_key", "share_key"):
            value: str | None = getattr(self, name)
            if value is not None:
                check_secret(name, value)

    def headers(self) -> dict[str, str]:
        """The headers of a request."""
        given = {"X-Anon-Key": self.anon_key, "X-Share-Key": self.share_key}
        return {name: value for name, value in given.items() if value}

    def over(self, other: "Keys") -> "Keys":
        """These keys, and those of `other` where there is none."""
        return Keys(anon_key=self.anon_key or other.anon_key, share_key=self.share_key or other.share_key)


class BearerToken:
    """A bearer token: an API token, a thread token, or a JWT that a callable renews."""

    def __init__(self, token: str | TokenProvider | None) -> None:
        self._provider = token if callable(token) else None
        self._token = token if isinstance(token, str) else None
        if self._token is not None:
            check_secret("A token", self._token)
        self._expires_at: float | None = None
        self._lock = asyncio.Lock()

    @property
    def is_renewable(self) -> bool:
        """Whether a refused token can be replaced."""
        return self._provider is not None

    @property
    def is_given(self) -> bool:
        """Whether requests have a token."""
        return self._provider is not None or self._token is not None

    async def get(self, *, refused: str | None = None) -> str | None:
        """A valid token, None without one. `refused` is a token that the server has refused.

        Raises the error of the callable, and `TimeoutError` if that takes longer than 30 seconds.
        """
        if self._provider is None:
            return self._token
        async with self._lock:
            if self._token is None or self._token == refused or self._is_expiring():
                async with asyncio.timeout(PROVIDER_TIMEOUT_SECONDS):
                    self._token = await _call(self._provider)
                check_secret("A token", self._token)
                self._expires_at = _expiry(self._token)
            return self._token

    def _is_expiring(self) -> bool:
        return self._expires_at is not None and time.time() > self._expires_at - REFRESH_BEFORE_SECONDS


async def _call(provider: TokenProvider) -> str:
    """The provider's token. A plain function is called in a thread, because it may wait for an answer."""
    given = provider() if inspect.iscoroutinefunction(provider) else await asyncio.to_thread(provider)
    return given if isinstance(given, str) else await given


class _Claims(msgspec.Struct, frozen=True):
    exp: float | None = None


def _expiry(token: str) -> float | None:
    """The `exp` of a JWT in seconds since the epoch, None for any other token. The signature is not checked."""
    pieces = token.split(".")
    if len(pieces) != 3:
        return None
    try:
        claims = base64.urlsafe_b64decode(pieces[1] + "=" * (-len(pieces[1]) % 4))
        return msgspec.json.decode(claims, type=_Claims).exp
    except (ValueError, msgspec.DecodeError):
        return None
