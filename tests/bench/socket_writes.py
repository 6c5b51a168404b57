"""Cost of sending one encoded message to many WebSockets: `python -m tests.bench.socket_writes [--observers 200 2000]`.

It compares the ways in which a server can send, in one process with nothing else to do: `uvloop` writes to the
transport, as Khala does; `picows` is that library's server, if it is installed; `socket` calls `send` of the socket
itself, the lower bound. The ways take turns, so that other load affects all alike. The clients are another process.
"""

import argparse
import asyncio
import json
import os
import resource
import selectors
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any

import uvloop

from tests.bench.processes import ROOT

WAYS = ("uvloop", "picows", "socket")
MESSAGE = b'{"type":"delta","threadId":"0194","from":1,"revision":2,"parts":[' + b"x" * 300 + b"]}"
FRAME = b"\x81\x7e" + len(MESSAGE).to_bytes(2, "big") + MESSAGE
HANDSHAKE = (
    b"GET / HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
ACCEPTED = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
TURNS, MESSAGES = 4, 20
"""Turns of each way, and messages in each turn."""
INTERVAL_PER_OBSERVER_SECONDS = 60e-6
MIN_INTERVAL_SECONDS = 0.02
TIMEOUT_SECONDS = 60.0

Send = Callable[[], None]


class PlainServer(asyncio.Protocol):
    """Accepts any handshake, and then writes encoded frames."""

    def __init__(self, sends: list[Send], *, direct: bool) -> None:
        self._sends = sends
        self._direct = direct

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer the handshake."""
        self._transport.write(ACCEPTED)
        if self._direct:
            connection = socket.socket(fileno=os.dup(self._transport.get_extra_info("socket").fileno()))
            self._sends.append(partial(connection.sendall, FRAME))
        else:
            self._sends.append(partial(self._transport.write, FRAME))


async def _listen(way: str, sends: list[Send]) -> int:
    if way != "picows":
        server = await asyncio.get_running_loop().create_server(
            lambda: PlainServer(sends, direct=way == "socket"), "127.0.0.1", 0, backlog=2048
        )
        return int(server.sockets[0].getsockname()[1])
    from picows import WSListener, WSMsgType, ws_create_server

    class Listener(WSListener):  # type: ignore[misc]  # the library may be missing
        def on_ws_connected(self, transport: Any) -> None:
            sends.append(partial(transport.send, WSMsgType.TEXT, MESSAGE))

    picows = await ws_create_server(lambda _: Listener(), "127.0.0.1", 0, backlog=2048)
    return int(picows.sockets[0].getsockname()[1])


async def serve(way: str, observers: int) -> None:
    """In the server's process: print the port, send to all observers, and print the CPU µs of each message to one."""
    sends: list[Send] = []
    print(await _listen(way, sends), flush=True)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while len(sends) < observers:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    interval = max(MIN_INTERVAL_SECONDS, INTERVAL_PER_OBSERVER_SECONDS * observers)
    before = _cpu_seconds()
    for _ in range(MESSAGES):
        for send in sends:
            send()
        await asyncio.sleep(interval)
    print((_cpu_seconds() - before) / MESSAGES / observers * 1e6, flush=True)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(way: str, observers: int) -> float:
    """CPU microseconds of one message to one observer. Raises `RuntimeError` if bytes were lost."""
    command = (sys.executable, "-m", "tests.bench.socket_writes", "--serve", way, "--observers", str(observers))
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        with selectors.DefaultSelector() as selector:
            for _ in range(observers):
                client = socket.create_connection(("127.0.0.1", port))
                client.sendall(HANDSHAKE)
                selector.register(client, selectors.EVENT_READ)
            received = _drain(selector, observers)
        cost = float(server.stdout.readline())
    if received < observers * MESSAGES * len(FRAME):
        raise RuntimeError(f"{way}: only {received} bytes came")
    return cost


def _drain(selector: selectors.BaseSelector, observers: int) -> int:
    """Read until the server has closed all connections; returns the number of bytes."""
    received = 0
    while observers:
        for key, _ in selector.select(TIMEOUT_SECONDS):
            data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]  # they are all sockets
            received += len(data)
            if not data:
                selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]  # as above
                observers -= 1
    return received


def compare(observers: Sequence[int], ways: Sequence[str]) -> dict[int, dict[str, float]]:
    """The median costs, by number of observers and way."""
    found: dict[int, dict[str, float]] = {}
    for count in observers:
        turns = [{way: measure(way, count) for way in ways} for _ in range(TURNS)]
        found[count] = {way: median(turn[way] for turn in turns) for way in ways}
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.socket_writes", description=__doc__)
    parser.add_argument("--observers", type=int, nargs="+", default=(200, 2000), metavar="N")
    parser.add_argument("--serve", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        uvloop.run(serve(args.serve, args.observers[0]))
        return
    ways = [way for way in WAYS if way != "picows" or find_spec("picows")]
    if len(ways) < len(WAYS):
        print("picows is not installed, so it is not measured: uv pip install picows", file=sys.stderr)
    print(json.dumps(compare(args.observers, ways), indent=2))


if __name__ == "__main__":
    main()
