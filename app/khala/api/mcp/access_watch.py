"""Notices during a call of a tool that the access of its caller was revoked."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from litestar.exceptions import NotAuthorizedException

from khala.domain.access import Caller
from khala.domain.errors import Unavailable
from khala.live.access_guard import is_unexpired

log = structlog.get_logger()

CHECK_INTERVAL_SECONDS = 2.0
ACCESS_ENDED = "Your access was revoked during the call, so the call was ended. It may have had its effect."


class AccessWatch:
    """Authenticates a request again while it is served.

    An access that expires by itself ends no call: each call is authorised when it begins, and has a time limit.
    """

    def __init__(self, caller: Caller, authenticate: Callable[[], Awaitable[Caller]]) -> None:
        self._caller = caller
        self._authenticate = authenticate

    async def wait_for_revocation(self) -> None:
        """Return when the access was revoked. While that cannot be checked, it counts as valid."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)
            try:
                if is_unexpired(self._caller) and not await self._is_valid() and is_unexpired(self._caller):
                    return
            except Unavailable as error:
                log.warning("mcp_access_not_checked", error=error.message)

    async def _is_valid(self) -> bool:
        try:
            return (await self._authenticate()).user_id == self._caller.user_id
        except NotAuthorizedException:
            return False
