"""Each kind of fault: how it is done to the world, and undone."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import psutil

from tests.chaos.schedule import Fault, FaultKind
from tests.chaos.world import Member, World

TERMINATED = 15.0
"""Seconds that a process has to end by itself; its grace period is one."""
READY = 60.0


async def all_of(world: World, faults: tuple[Fault, ...]) -> None:
    """Do them, each at its time; returns when the last one is over. Of two that want the same, the second one waits."""
    impossible = missing(world)
    async with asyncio.TaskGroup() as tasks:
        for fault in faults:
            if fault.kind in impossible:
                world.told(f"{fault.kind} is left out: {impossible[fault.kind]}")
            else:
                tasks.create_task(_one(world, fault))


def missing(world: World) -> Mapping[FaultKind, str]:
    """The kinds that can't be done here, and what they need."""
    needs: dict[FaultKind, tuple[bool, str]] = {
        "clock": (world.clock_library is not None, "it needs a C compiler"),
        "full-disk": (world.cluster.has_disk, "it needs root, who may mount a tmpfs"),
        "slow-disk": (world.cluster.has_delay, "it needs a C compiler"),
    }
    return {kind: why for kind, (there, why) in needs.items() if not there}


async def _one(world: World, fault: Fault) -> None:
    await asyncio.sleep(max(0.0, world.began + fault.at - time.monotonic()))
    about = f"{fault.kind} {fault.target} {fault.mode} {fault.amount or ''}".rstrip()
    async with _held(world, fault):
        world.told(f"{about} for {fault.seconds} s" if fault.seconds else about)
        await KINDS[fault.kind](world, fault)
        if fault.seconds:
            world.told(f"{about} is over")


def _held(world: World, fault: Fault) -> asyncio.Lock:
    if fault.target == "postgres":
        return world.postgres_lock
    return world.model_lock if fault.target == "model" else world.members[fault.target].lock


async def _kill(world: World, fault: Fault) -> None:
    member = world.members[fault.target]
    member.process.tell(signal.SIGKILL)
    await _restarted(member, fault.seconds)


async def _term(world: World, fault: Fault) -> None:
    member = world.members[fault.target]
    member.process.tell(signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        await _gone(member, TERMINATED)
    if member.process.running():
        world.told(f"{member.name} did not end in {TERMINATED:g} s after SIGTERM")
        member.process.tell(signal.SIGKILL)
    await _restarted(member, fault.seconds)


async def _restarted(member: Member, seconds: float) -> None:
    await _gone(member, READY)
    await asyncio.sleep(seconds)
    member.start()


async def _gone(member: Member, within: float) -> None:
    async with asyncio.timeout(within):
        while member.process.running():
            await asyncio.sleep(0.02)


async def _freeze(world: World, fault: Fault) -> None:
    process = world.members[fault.target].process
    process.tell(signal.SIGSTOP)
    try:
        await asyncio.sleep(fault.seconds)
    finally:
        process.tell(signal.SIGCONT)


def _backend(world: World, fault: Fault) -> psutil.Process | None:
    backends = world.cluster.backends()
    return backends[int(fault.amount * len(backends))] if backends else None


async def _backend_kill(world: World, fault: Fault) -> None:
    if (backend := _backend(world, fault)) is not None:
        backend.kill()


async def _backend_end(world: World, fault: Fault) -> None:
    if (backend := _backend(world, fault)) is not None:
        backend.terminate()


async def _backend_freeze(world: World, fault: Fault) -> None:
    if (backend := _backend(world, fault)) is not None:
        backend.suspend()
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                backend.resume()


def _stopping(number: signal.Signals) -> Callable[[World, Fault], Awaitable[None]]:
    async def stop(world: World, fault: Fault) -> None:
        async with _down(world):
            world.cluster.tell(number)
            await world.cluster.gone()
            await asyncio.sleep(fault.seconds)

    return stop


@contextlib.asynccontextmanager
async def _down(world: World) -> AsyncIterator[None]:
    world.cluster.wanted = False
    try:
        yield
    finally:
        world.cluster.wanted = True
        await world.cluster.ready()


async def _postmaster_freeze(world: World, fault: Fault) -> None:
    world.cluster.tell(signal.SIGSTOP)
    try:
        await asyncio.sleep(fault.seconds)
    finally:
        world.cluster.tell(signal.SIGCONT)


async def _cut_clients(world: World, fault: Fault) -> None:
    world.members[fault.target].clients.cut()


async def _cut_database(world: World, fault: Fault) -> None:
    world.members[fault.target].database.cut()


async def _stall_clients(world: World, fault: Fault) -> None:
    await _stalled(world.members[fault.target].clients.flowing, fault.seconds)


async def _stall_database(world: World, fault: Fault) -> None:
    await _stalled(world.members[fault.target].database.flowing, fault.seconds)


async def _stalled(flowing: asyncio.Event, seconds: float) -> None:
    flowing.clear()
    try:
        await asyncio.sleep(seconds)
    finally:
        flowing.set()


async def _slow_database(world: World, fault: Fault) -> None:
    link = world.members[fault.target].database
    link.delay = fault.amount
    try:
        await asyncio.sleep(fault.seconds)
    finally:
        link.delay = 0.0


async def _slow_disk(world: World, fault: Fault) -> None:
    world.cluster.slow(fault.amount)
    try:
        await asyncio.sleep(fault.seconds)
    finally:
        world.cluster.slow(0)


async def _full_disk(world: World, fault: Fault) -> None:
    end = time.monotonic() + fault.seconds
    try:
        while time.monotonic() < end:
            # Again and again: what Postgres gives back meanwhile is taken, too.
            world.cluster.fill()
            await asyncio.sleep(0.1)
    finally:
        world.cluster.free()
        await world.cluster.ready()


async def _clock(world: World, fault: Fault) -> None:
    member = world.members[fault.target]
    member.set_clock(fault.amount)
    try:
        await asyncio.sleep(fault.seconds)
    finally:
        member.set_clock(0)


async def _model(world: World, fault: Fault) -> None:
    world.model.mode = fault.mode
    try:
        await asyncio.sleep(fault.seconds)
    finally:
        world.model.mode = ""


KINDS: dict[FaultKind, Callable[[World, Fault], Awaitable[None]]] = {
    "kill": _kill,
    "term": _term,
    "freeze": _freeze,
    "backend-kill": _backend_kill,
    "backend-freeze": _backend_freeze,
    "backend-end": _backend_end,
    "postmaster-kill": _stopping(signal.SIGKILL),
    "postmaster-freeze": _postmaster_freeze,
    "postgres-stop": _stopping(signal.SIGINT),
    "cut-clients": _cut_clients,
    "cut-database": _cut_database,
    "stall-clients": _stall_clients,
    "stall-database": _stall_database,
    "slow-database": _slow_database,
    "slow-disk": _slow_disk,
    "full-disk": _full_disk,
    "clock": _clock,
    "model": _model,
}
