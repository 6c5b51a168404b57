"""The bench's own processes: started as modules, asked in lines of JSON, and gone when whoever asks is."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

ROOT = Path(__file__).parents[2]
LONGEST_LINE = 1 << 30
"""Bytes of one request or answer."""
CLOSING = 5.0
"""Seconds that a process has to end once its input is closed."""


class Request(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a process can be asked; subclasses say what."""


class Address(msgspec.Struct, frozen=True):
    """Where a process listens; its first answer."""

    url: str


class Listen(Request, frozen=True, kw_only=True):
    """Begin to listen on a free port of the loopback interface; answered by an `Address`."""


Answer = TypeVar("Answer")
Asked = TypeVar("Asked")


class Worker:
    """A process that answers."""

    def __init__(self, module: str, process: asyncio.subprocess.Process) -> None:
        self.pid = process.pid
        self._module = module
        self._process = process

    async def ask(self, request: Request, expect: type[Answer], *, within: float = 60.0) -> Answer:
        """The answer to a request. One at a time."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(msgspec.json.encode(request) + b"\n")
        async with asyncio.timeout(within):
            line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process {self._module} has ended")
        return msgspec.json.decode(line, type=expect)

    async def close(self) -> None:
        """End it."""
        assert self._process.stdin
        self._process.stdin.close()
        try:
            async with asyncio.timeout(CLOSING):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def worker(module: str) -> AsyncIterator[Worker]:
    """The process of `tests.bench.<module>`, for as long as this is open."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"tests.bench.{module}", cwd=ROOT, stdin=pipe, stdout=pipe, limit=LONGEST_LINE
    )
    opened = Worker(module, process)
    try:
        yield opened
    finally:
        await opened.close()


async def answering(requests: msgspec.json.Decoder[Asked], answer: Callable[[Asked], Awaitable[object]]) -> None:
    """In a worker: answer each line of the input, until its end."""
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        answered = await answer(requests.decode(line))
        sys.stdout.write(msgspec.json.encode(answered).decode() + "\n")
        sys.stdout.flush()
