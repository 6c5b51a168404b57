"""The monitor of pauses: one timer for all of them, and a pause ends when nothing follows."""

import asyncio
from typing import Any

import pytest

from khala.models.streaming.pause_monitor import MAX_HELD_BYTES, PauseMonitor, ReadPause
from khala.models.streaming.paused_transport import PausedTransport


class ScriptedTransport(PausedTransport):
    """A transport that has these numbers of unread bytes, one after the other; the last one remains."""

    def __init__(self, *unread: int) -> None:
        self._unread = list(unread)

    @property
    def is_closing(self) -> bool:
        return False

    def unread(self) -> int:
        return self._unread.pop(0) if len(self._unread) > 1 else self._unread[0]


def pause(*unread: int, silence: float = 0.02, seconds: float = 60.0) -> ReadPause:
    return ReadPause(ScriptedTransport(*unread), silence, asyncio.get_running_loop().time() + seconds)


async def test_one_timer_serves_all_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, monitor, timers = asyncio.get_running_loop(), PauseMonitor(), 0
    call_at = loop.call_at

    def counted(*args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        nonlocal timers
        timers += 1
        return call_at(*args, **kwargs)

    pauses = [pause(10, 20, 30, 30) for _ in range(50)]
    monkeypatch.setattr(loop, "call_at", counted)
    for each in pauses:
        monitor.add(each, loop.time() + 0.02)
    await asyncio.wait([each.released for each in pauses], timeout=5)
    assert all(each.released.done() for each in pauses)
    assert timers < 20, "of 200 looks"


async def test_a_pause_that_is_due_earlier_does_not_wait_for_the_others() -> None:
    loop, monitor = asyncio.get_running_loop(), PauseMonitor()
    late, early = pause(0), pause(10)
    monitor.add(late, loop.time() + 60)
    monitor.add(early, loop.time() + 0.02)
    await asyncio.wait_for(early.released, 5)
    assert not late.released.done()
    monitor.remove(late)


@pytest.mark.parametrize(
    ("unread", "seconds", "ends"),
    [
        ((10, 10), 60.0, True),
        ((10, 11), 60.0, False),
        ((0, 0), 60.0, False),
        ((1, 2), 0.0, True),
        ((1, MAX_HELD_BYTES), 60.0, True),
    ],
    ids=["silence", "more bytes", "no bytes yet", "too long", "too many bytes"],
)
async def test_a_pause_ends_when_nothing_follows_or_it_is_too_long_or_too_large(
    unread: tuple[int, ...], seconds: float, ends: bool
) -> None:
    looked, now = pause(*unread, seconds=seconds), asyncio.get_running_loop().time()
    looks = [looked.look(now), looked.look(now)]
    assert (looks[-1] is None) == looked.released.done() == ends
    assert looked.deliver() == (not ends and unread[-1] > 0)
