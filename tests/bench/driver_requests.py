"""Requests to the drivers, the processes that run the observers: connect, wait, read what they received, disconnect."""

import asyncio
from collections.abc import Mapping, Sequence

from tests.bench.observations import Dialect, Expected, Observations
from tests.bench.observers import Disconnect, ObserverCount, Read, Target, Wait, Watch
from tests.bench.processes import Worker

CONNECT_TIMEOUT_SECONDS = 60.0
"""For all observers together."""
EXTRA_SECONDS = 60.0
"""Time that a workload may take beyond the length of its answers."""


async def watch(drivers: Sequence[Worker], targets: Sequence[Target]) -> None:
    """Connect all observers, spread over the drivers. Raises `RuntimeError` if one cannot connect."""
    shares = [targets[at :: len(drivers)] for at in range(len(drivers))]
    requests = [
        driver.ask(Watch(targets=share), ObserverCount, within=CONNECT_TIMEOUT_SECONDS)
        for driver, share in zip(drivers, shares, strict=True)
    ]
    connected = sum(count.observers for count in await asyncio.gather(*requests))
    if connected < len(targets):
        raise RuntimeError(f"only {connected} of {len(targets)} observers could connect")


async def wait(drivers: Sequence[Worker], seconds: float) -> None:
    """Wait until all observers have received the end, `seconds` at most; `read` reports those that have not."""
    await asyncio.gather(*(driver.ask(Wait(seconds=seconds), ObserverCount, within=seconds + 5) for driver in drivers))


async def read(drivers: Sequence[Worker], dialect: Dialect, expected: Mapping[str, Expected]) -> Observations:
    """Disconnect all observers, and return what they received."""
    observations = Observations()
    for part in await asyncio.gather(
        *(
            driver.ask(Read(dialect=dialect, expected=expected), Observations, within=EXTRA_SECONDS)
            for driver in drivers
        )
    ):
        observations.add(part)
    return observations


async def disconnect(drivers: Sequence[Worker]) -> int:
    """Disconnect all observers; returns how many were still connected."""
    return sum([(await driver.ask(Disconnect(), ObserverCount)).observers for driver in drivers])
