"""Injects each kind of fault into the deployment, and ends the fault after its duration."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import psutil

from tests.chaos.deployment import Deployment, Member
from tests.chaos.schedule import Fault, FaultKind

TERMINATE_TIMEOUT_SECONDS = 15.0
"""Time for a process to end after SIGTERM. Its runs have a grace period of 1 s."""
END_TIMEOUT_SECONDS = 60.0


async def inject(deployment: Deployment, faults: tuple[Fault, ...]) -> None:
    """Inject the faults, each at its time; returns when the last one has ended. Faults of one target run one by one."""
    impossible = missing(deployment)
    async with asyncio.TaskGroup() as tasks:
        for fault in faults:
            if fault.kind in impossible:
                deployment.record_event(f"{fault.kind} is skipped: {impossible[fault.kind]}")
            else:
                tasks.create_task(_inject_one(deployment, fault))


def missing(deployment: Deployment) -> Mapping[FaultKind, str]:
    """The kinds of faults that are impossible on this machine, and the reason."""
    needs: dict[FaultKind, tuple[bool, str]] = {
        "clock": (deployment.clock_library is not None, "it needs a C compiler"),
        "full-disk": (deployment.cluster.has_disk, "it needs root, who may mount a tmpfs"),
        "slow-disk": (deployment.cluster.has_delay, "it needs a C compiler"),
    }
    return {kind: reason for kind, (possible, reason) in needs.items() if not possible}


async def _inject_one(deployment: Deployment, fault: Fault) -> None:
    await asyncio.sleep(max(0.0, deployment.began + fault.at - time.monotonic()))
    description = f"{fault.kind} {fault.target} {fault.mode} {fault.amount or ''}".rstrip()
    async with _lock_of(deployment, fault):
        deployment.record_event(f"{description} for {fault.seconds} s" if fault.seconds else description)
        await KINDS[fault.kind](deployment, fault)
        if fault.seconds:
            deployment.record_event(f"{description} has ended")


def _lock_of(deployment: Deployment, fault: Fault) -> asyncio.Lock:
    return deployment.locks.get(fault.target) or deployment.members[fault.target].lock


async def _kill(deployment: Deployment, fault: Fault) -> None:
    member = deployment.members[fault.target]
    member.process.send_signal(signal.SIGKILL)
    await _restarted(member, fault.seconds)


async def _term(deployment: Deployment, fault: Fault) -> None:
    member = deployment.members[fault.target]
    member.process.send_signal(signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        await _wait_ended(member, TERMINATE_TIMEOUT_SECONDS)
    if member.process.running():
        deployment.record_event(f"{member.name} did not end in {TERMINATE_TIMEOUT_SECONDS:g} s after SIGTERM")
        member.process.send_signal(signal.SIGKILL)
    await _restarted(member, fault.seconds)


async def _restarted(member: Member, seconds: float) -> None:
    await _wait_ended(member, END_TIMEOUT_SECONDS)
    await asyncio.sleep(seconds)
    member.start()


async def _wait_ended(member: Member, within: float) -> None:
    async with asyncio.timeout(within):
        while member.process.running():
            await asyncio.sleep(0.02)


async def _freeze(deployment: Deployment, fault: Fault) -> None:
    process = deployment.members[fault.target].process
    process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(fault.seconds)
    finally:
        process.send_signal(signal.SIGCONT)


def _backend(deployment: Deployment, fault: Fault) -> psutil.Process | None:
    backends = deployment.cluster.backends()
    return backends[int(fault.amount * len(backends))] if backends else None


async def _backend_kill(deployment: Deployment, fault: Fault) -> None:
    if (backend := _backend(deployment, fault)) is not None:
        backend.kill()


async def _backend_end(deployment: Deployment, fault: Fault) -> None:
    if (backend := _backend(deployment, fault)) is not None:
        backend.terminate()


async def _backend_freeze(deployment: Deployment, fault: Fault) -> None:
    if (backend := _backend(deployment, fault)) is not None:
        backend.suspend()
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                backend.resume()


def _stop_with(number: signal.Signals) -> Callable[[Deployment, Fault], Awaitable[None]]:
    async def stop(deployment: Deployment, fault: Fault) -> None:
        async with _down(deployment):
            deployment.cluster.send_signal(number)
            await deployment.cluster.wait_ended()
            await asyncio.sleep(fault.seconds)

    return stop


@contextlib.asynccontextmanager
async def _down(deployment: Deployment) -> AsyncIterator[None]:
    deployment.cluster.wanted = False
    try:
        yield
    finally:
        deployment.cluster.wanted = True
        await deployment.cluster.ready()


async def _postmaster_freeze(deployment: Deployment, fault: Fault) -> None:
    deployment.cluster.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(fault.seconds)
    finally:
        deployment.cluster.send_signal(signal.SIGCONT)


async def _cut_clients(deployment: Deployment, fault: Fault) -> None:
    deployment.members[fault.target].clients.reset_connections()


async def _cut_database(deployment: Deployment, fault: Fault) -> None:
    deployment.members[fault.target].database.reset_connections()


async def _stall_clients(deployment: Deployment, fault: Fault) -> None:
    await _stall(deployment.members[fault.target].clients.flowing, fault.seconds)


async def _stall_database(deployment: Deployment, fault: Fault) -> None:
    await _stall(deployment.members[fault.target].database.flowing, fault.seconds)


async def _stall(flowing: asyncio.Event, seconds: float) -> None:
    flowing.clear()
    try:
        await asyncio.sleep(seconds)
    finally:
        flowing.set()


async def _slow_database(deployment: Deployment, fault: Fault) -> None:
    proxy = deployment.members[fault.target].database
    proxy.delay = fault.amount
    try:
        await asyncio.sleep(fault.seconds)
    finally:
        proxy.delay = 0.0


async def _slow_disk(deployment: Deployment, fault: Fault) -> None:
    deployment.cluster.slow(fault.amount)
    try:
        await asyncio.sleep(fault.seconds)
    finally:
        deployment.cluster.slow(0)


async def _full_disk(deployment: Deployment, fault: Fault) -> None:
    end = time.monotonic() + fault.seconds
    try:
        while time.monotonic() < end:
            # Repeatedly, because Postgres frees space meanwhile.
            deployment.cluster.fill()
            await asyncio.sleep(0.1)
    finally:
        deployment.cluster.free()
        await deployment.cluster.ready()


async def _clock(deployment: Deployment, fault: Fault) -> None:
    member = deployment.members[fault.target]
    member.set_clock(fault.amount)
    try:
        await asyncio.sleep(fault.seconds)
    finally:
        member.set_clock(0)


async def _model(deployment: Deployment, fault: Fault) -> None:
    deployment.model.mode = fault.mode
    try:
        await asyncio.sleep(fault.seconds)
    finally:
        deployment.model.mode = ""


async def _command_kill(deployment: Deployment, fault: Fault) -> None:
    programs = deployment.command_programs()
    if programs:
        with contextlib.suppress(psutil.NoSuchProcess):
            programs[int(fault.amount * len(programs))].kill()


KINDS: dict[FaultKind, Callable[[Deployment, Fault], Awaitable[None]]] = {
    "kill": _kill,
    "term": _term,
    "freeze": _freeze,
    "backend-kill": _backend_kill,
    "backend-freeze": _backend_freeze,
    "backend-end": _backend_end,
    "postmaster-kill": _stop_with(signal.SIGKILL),
    "postmaster-freeze": _postmaster_freeze,
    "postgres-stop": _stop_with(signal.SIGINT),
    "cut-clients": _cut_clients,
    "cut-database": _cut_database,
    "stall-clients": _stall_clients,
    "stall-database": _stall_database,
    "slow-database": _slow_database,
    "slow-disk": _slow_disk,
    "full-disk": _full_disk,
    "clock": _clock,
    "model": _model,
    "command-kill": _command_kill,
}
