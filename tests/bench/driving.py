"""What the drivers are asked: to share the observers among them, to wait, and to tell what was seen."""

import asyncio
from collections.abc import Mapping, Sequence

from tests.bench.observers import Count, Leave, Read, Target, Wait, Watch
from tests.bench.processes import Worker
from tests.bench.reading import Dialect, Expected, Seen

SETTING_UP = 60.0
"""Seconds that all observers have to connect."""
SPARE = 60.0
"""Seconds that a workload may take longer than its answers do."""


async def watch(drivers: Sequence[Worker], targets: Sequence[Target]) -> None:
    """Let the drivers share the observers among them. Raises if one can't connect."""
    shares = [targets[at :: len(drivers)] for at in range(len(drivers))]
    asked = [
        driver.ask(Watch(targets=share), Count, within=SETTING_UP)
        for driver, share in zip(drivers, shares, strict=True)
    ]
    connected = sum(count.observers for count in await asyncio.gather(*asked))
    if connected < len(targets):
        raise RuntimeError(f"only {connected} of {len(targets)} observers could connect")


async def wait(drivers: Sequence[Worker], seconds: float) -> None:
    """Wait until all observers have seen the end, or it is in vain; `read` tells which."""
    await asyncio.gather(*(driver.ask(Wait(seconds=seconds), Count, within=seconds + 5) for driver in drivers))


async def read(drivers: Sequence[Worker], dialect: Dialect, expected: Mapping[str, Expected]) -> Seen:
    """What all observers saw; they leave."""
    seen = Seen()
    for part in await asyncio.gather(
        *(driver.ask(Read(dialect=dialect, expected=expected), Seen, within=SPARE) for driver in drivers)
    ):
        seen.add(part)
    return seen


async def leave(drivers: Sequence[Worker]) -> int:
    """All observers leave; returns how many had followed until then."""
    return sum([(await driver.ask(Leave(), Count)).observers for driver in drivers])
