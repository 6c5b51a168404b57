"""Background loops of a process, and the signals that stop it."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import structlog

log = structlog.get_logger()


@asynccontextmanager
async def background(loops: Mapping[str, Callable[[], Awaitable[None]]]) -> AsyncIterator[None]:
    """Run these loops while the context is open. A loop that fails is logged and restarted.

    One that returns has ended.
    """
    tasks = [asyncio.create_task(_run_until_it_returns(name, loop), name=name) for name, loop in loops.items()]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _run_until_it_returns(name: str, loop: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            return await loop()
        except Exception:
            log.exception("background_loop_failed", loop=name)
        await asyncio.sleep(1)


def stopped_by_signal() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set. The second signal cancels the task that called this."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()

    def stop_or_quit() -> None:
        if stop.is_set() and main is not None:
            main.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_or_quit)
    return stop
