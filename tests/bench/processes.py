"""Processes of the benchmark. Each runs a module, answers JSON requests line by line, and ends with its parent."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

ROOT = Path(__file__).parents[2]
MAX_LINE_BYTES = 1 << 30
"""Of one request or answer."""
CLOSE_TIMEOUT_SECONDS = 5.0
"""For a process to end once its input is closed."""


class Request(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base class of the requests to a process."""


class Address(msgspec.Struct, frozen=True):
    """The address at which a process listens."""

    url: str


class Listen(Request, frozen=True, kw_only=True):
    """Begin to listen on a free port of the loopback interface; answered by an `Address`."""


Answer = TypeVar("Answer")
AnyRequest = TypeVar("AnyRequest")


class Worker:
    """A process that answers requests."""

    def __init__(self, module: str, process: asyncio.subprocess.Process) -> None:
        self.pid = process.pid
        self._module = module
        self._process = process

    async def ask(self, request: Request, expect: type[Answer], *, within: float = 60.0) -> Answer:
        """Send a request and return its answer. Only one request may be pending."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(msgspec.json.encode(request) + b"\n")
        async with asyncio.timeout(within):
            line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process {self._module} has ended")
        return msgspec.json.decode(line, type=expect)

    async def close(self) -> None:
        """Close its input, and kill it if it does not end in time."""
        assert self._process.stdin
        self._process.stdin.close()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def worker(module: str) -> AsyncIterator[Worker]:
    """Run `tests.bench.<module>` as a process for as long as this is open."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"tests.bench.{module}", cwd=ROOT, stdin=pipe, stdout=pipe, limit=MAX_LINE_BYTES
    )
    started = Worker(module, process)
    try:
        yield started
    finally:
        await started.close()


async def serve_requests(
    requests: msgspec.json.Decoder[AnyRequest], answer: Callable[[AnyRequest], Awaitable[object]]
) -> None:
    """In a worker process: answer each line of the input, until its end."""
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        answered = await answer(requests.decode(line))
        sys.stdout.write(msgspec.json.encode(answered).decode() + "\n")
        sys.stdout.flush()
