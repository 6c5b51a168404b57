"""Subscribes to changes of a server's tools, where the protocol has a request for that (from version 2026-07-28)."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from mcp import ClientSession, MCPError
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp_types import METHOD_NOT_FOUND
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from khala.domain.backoff import Backoff
from khala.tools.mcp.connection_events import ConnectionSignal

log = structlog.get_logger()

RETRY = Backoff(first_seconds=1.0, max_seconds=60.0, min_factor=0.5)
STABLE_SECONDS = 30.0
"""A subscription that lasted this long resets the delay."""


@asynccontextmanager
async def followed(client: ClientSession, signal: ConnectionSignal) -> AsyncIterator[None]:
    """Request a check at each change that the server reports, while this is open.

    In older versions, servers report changes without a subscription.
    """
    capabilities = client.server_capabilities
    reports = capabilities is not None and capabilities.tools is not None and capabilities.tools.list_changed
    if not reports or client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        yield
        return
    following = asyncio.create_task(_follow(client, signal), name="mcp tool list changes")
    try:
        yield
    finally:
        following.cancel()
        await asyncio.wait({following})


async def _follow(client: ClientSession, signal: ConnectionSignal) -> None:
    failures = 0
    while True:
        began = time.monotonic()
        try:
            async with listen(client, tools_list_changed=True) as changes:
                # The tools may have changed before the subscription.
                signal.request_limited_check()
                async for _ in changes:
                    signal.request_limited_check()
        except MCPError as error:
            if error.code == METHOD_NOT_FOUND:
                return
            log.debug("mcp_subscription_failed", code=error.code)
        except SubscriptionLost:
            log.debug("mcp_subscription_lost")
        failures = 1 if time.monotonic() - began >= STABLE_SECONDS else failures + 1
        await asyncio.sleep(RETRY.delay(failures, random.random()))
