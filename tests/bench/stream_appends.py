"""Appends to durable streams: `python -m tests.bench.stream_appends [--seconds 4 --turns 4 --clients 1 16]`.

Each client appends to a stream of its own, and waits for the acknowledgement of an append before it sends the next one.
The protocol's reference server gets the same requests in turns, with its contents in files that it flushes to the disk
before it acknowledges. Both store on the same file system; Khala in the embedded Postgres with `fsync`.
"""

import argparse
import asyncio
import itertools
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import aiohttp
import msgspec

from tests.support import node_packages
from tests.support.oidc.install import NODE
from tests.support.ports import free_port
from tests.support.server import Server

PROGRAM = Path(__file__).parent / "durable_streams_reference" / "reference.mjs"
EVENT = msgspec.json.encode({"event": "delta", "text": "And then the tide turned, as it always does, w.. "})
HEADERS = {"Content-Type": "application/json"}
READY_SECONDS = 30.0
_names = itertools.count(1)


class AppendRate(msgspec.Struct, frozen=True):
    """Appends per second of each turn, by the number of clients."""

    clients: int
    khala: list[float]
    reference: list[float]

    @property
    def ratio(self) -> float:
        """The median rate of Khala, divided by that of the reference server."""
        return median(self.khala) / median(self.reference)


async def append_rate(url: str, clients: int, seconds: float) -> float:
    """Append for so long, and return the acknowledged appends per second."""
    prefix = f"{url}/v1/stream/bench/{next(_names)}"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=HEADERS) as http:
        for client in range(clients):
            async with http.put(f"{prefix}/{client}") as created:
                created.raise_for_status()
        began = time.monotonic()
        counts = await asyncio.gather(
            *(_append(http, f"{prefix}/{client}", began + seconds) for client in range(clients))
        )
        return sum(counts) / (time.monotonic() - began)


async def _append(http: aiohttp.ClientSession, stream: str, until: float) -> int:
    done = 0
    while time.monotonic() < until:
        async with http.post(stream, data=EVENT) as response:
            response.raise_for_status()
        done += 1
    return done


@contextmanager
def reference_server(folder: Path) -> Iterator[str]:
    """Serve by the reference server, which is stopped at the end."""
    program, port = node_packages.install(PROGRAM), free_port()
    env = {"KHALA_PORT": str(port), "KHALA_FOLDER": str(folder)}
    with subprocess.Popen(
        [str(NODE), str(program)], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            _wait_for(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(READY_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


@contextmanager
def khala_server(folder: Path) -> Iterator[str]:
    """Serve by Khala, with streams for everybody."""
    env = {"KHALA_HOME": str(folder), "KHALA_STREAMS": "open", "KHALA_STREAMS_PER_ACCOUNT": "100000"}
    server = Server(folder / "log", env, anew=True)  # As operators start it: forked servers check the order of locks.
    server.start()
    try:
        yield server.url
    finally:
        server.kill(signal.SIGTERM)


def measure(clients: Sequence[int], seconds: float, turns: int) -> list[AppendRate]:
    """Measure both servers in turns."""
    with (
        tempfile.TemporaryDirectory(prefix="khala-bench-streams-", ignore_cleanup_errors=True) as folder,
        khala_server(Path(folder)) as khala,
        reference_server(Path(folder) / "reference") as reference,
    ):
        return [_measure_turns(khala, reference, count, seconds, turns) for count in clients]


def _measure_turns(khala: str, reference: str, clients: int, seconds: float, turns: int) -> AppendRate:
    rates: dict[str, list[float]] = {khala: [], reference: []}
    for turn in range(turns):
        for url in (khala, reference) if turn % 2 else (reference, khala):
            rates[url].append(asyncio.run(append_rate(url, clients, seconds)))
    return AppendRate(clients, rates[khala], rates[reference])


def main() -> int:
    """Measure and print. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.stream_appends", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4, help="length of a turn")
    parser.add_argument("--turns", type=int, default=4, help="turns of each server")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16], help="concurrent clients")
    asked = parser.parse_args()
    print(f"{'clients':>8} {'Khala /s':>10} {'reference /s':>13} {'ratio':>6}")
    for rate in measure(asked.clients, asked.seconds, asked.turns):
        khala, reference = median(rate.khala), median(rate.reference)
        print(f"{rate.clients:>8} {khala:>10,.0f} {reference:>13,.0f} {rate.ratio:>6.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
