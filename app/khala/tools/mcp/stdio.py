"""A server that is a program: started, spoken to by lines over its standard input and output, and ended as a tree."""

import asyncio
import os
import re
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import anyio
import structlog
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError, jsonrpc_message_adapter

from khala.tools.mcp.config import McpServerConfig
from khala.tools.mcp.connection_events import MOST_MESSAGE, TOO_LARGE, ConnectionSignal

log = structlog.get_logger()

SUPERVISOR = Path(__file__).with_name("supervisor.py")
INHERITED = ("PATH", "HOME")
"""What a server gets of our own environment."""
CHUNK = 1 << 16
LEAVING = 0.5
"""Seconds that a server has to end by itself when its input is closed."""
ENDING = 2.5
"""Seconds that the keeper has to end it."""
MOST_LOGGED = 200
"""Lines of one server's complaints that are logged while it runs."""
LONGEST_LOGGED = 500
ID = re.compile(rb'"id"\s*:\s*(\d{1,15})')

MessageStreams: TypeAlias = tuple[ObjectReceiveStream[SessionMessage | Exception], ObjectSendStream[SessionMessage]]


class ProgramNotFoundError(Exception):
    """The command is no program."""


def environment(server: McpServerConfig, ours: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The server's whole environment."""
    return {name: ours[name] for name in INHERITED if name in ours} | server.env


@asynccontextmanager
async def started(server: McpServerConfig, watch: ConnectionSignal) -> AsyncIterator[MessageStreams]:
    """The program's streams; when this closes it ends, with all that it has started, within 3 seconds or so."""
    process = await _spawned(server)
    sent, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, to_send = anyio.create_memory_object_stream[SessionMessage](0)
    pumps = (_OutputReader(process, sent, watch), _write(process, to_send, watch), _log(process, server.name))
    tasks = [asyncio.create_task(pumps[0].pump()), *(asyncio.create_task(pump) for pump in pumps[1:])]
    try:
        yield received, outgoing
    finally:
        watch.end()
        await asyncio.shield(_ended(process))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for stream in (sent, received, outgoing, to_send):
            stream.close()


async def _spawned(server: McpServerConfig) -> Process:
    env = environment(server)
    command, cwd = await asyncio.to_thread(_found, server, env.get("PATH", os.defpath))
    program = [sys.executable, "-I", "-S", str(SUPERVISOR), str(os.getpid()), command, *server.args]
    return await asyncio.create_subprocess_exec(
        *program, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env, cwd=cwd, start_new_session=True, limit=CHUNK
    )


def _found(server: McpServerConfig, path: str) -> tuple[str, Path | None]:
    """The program's file, on the path or as seen from the server's folder, and that folder."""
    cwd = None if server.cwd is None else Path(server.cwd).expanduser().absolute()
    command = server.command or ""
    for candidate in (command, str(Path(cwd or "", command))):
        if found := shutil.which(candidate, path=path):
            # Not resolved: what a link is called may matter to the program.
            return str(Path(found).absolute()), cwd
    raise ProgramNotFoundError


async def _ended(process: Process) -> None:
    """End it, more and more firmly."""
    if process.stdin is not None:
        process.stdin.close()
    for seconds, how in ((LEAVING, signal.SIGTERM), (ENDING, signal.SIGKILL)):
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await process.wait()
                return
        with suppress(ProcessLookupError):
            process.send_signal(how)
    await process.wait()


class _OutputReader:
    """What the server says, line by line. A line that is too long is an error of the call that it answers."""

    def __init__(
        self, process: Process, sent: ObjectSendStream[SessionMessage | Exception], watch: ConnectionSignal
    ) -> None:
        self._process = process
        self._sent = sent
        self._watch = watch
        self._line = bytearray()
        self._over = 0

    async def pump(self) -> None:
        """Pass all of it on, until the end of the stream."""
        assert self._process.stdout is not None
        try:
            async with self._sent:
                while chunk := await self._process.stdout.read(CHUNK):
                    await self._take(chunk)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
            # Nobody listens any more.
            pass
        finally:
            self._watch.end()
        # So that it never waits for us before it ends.
        while await self._process.stdout.read(CHUNK):
            pass

    async def _take(self, chunk: bytes) -> None:
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            self._add(line)
            await self._pass_on()
        self._add(rest)

    def _add(self, more: bytes) -> None:
        """Of a line that is too long the ends are kept: one of them has the id."""
        self._line += more
        if len(self._line) > MOST_MESSAGE:
            self._over += len(self._line) - 400
            self._line[200:-200] = b""

    async def _pass_on(self) -> None:
        line, over = bytes(self._line), self._over
        self._line, self._over = bytearray(), 0
        message = _too_large(line) if over else _parsed(line)
        if message is not None:
            await self._sent.send(message)


def _parsed(line: bytes) -> SessionMessage | None:
    if not line.strip():
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        # Some print to their output what is meant for people.
        log.debug("mcp_line_ignored", line=line[:LONGEST_LOGGED].decode(errors="replace"))
        return None


def _too_large(ends: bytes) -> SessionMessage | None:
    found = ID.search(ends[:200]) or ID.search(ends[-200:])
    if found is None:
        return None
    error = ErrorData(code=TOO_LARGE, message=f"The answer has more than {MOST_MESSAGE:,} bytes.")
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=int(found[1]), error=error))


async def _write(process: Process, to_send: ObjectReceiveStream[SessionMessage], watch: ConnectionSignal) -> None:
    assert process.stdin is not None
    try:
        async with to_send:
            async for message in to_send:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(line.encode() + b"\n")
                await process.stdin.drain()
    except (ConnectionError, RuntimeError):
        # It has closed its input, and may live on: nobody can ask it anything any more.
        watch.end()


async def _log(process: Process, name: str) -> None:
    """What the server complains of, as far as it is worth keeping."""
    assert process.stderr is not None
    logged, line = 0, b""
    while chunk := await process.stderr.read(CHUNK):
        *whole, line = (line + chunk).split(b"\n")
        line = line[:LONGEST_LOGGED]
        for one in whole[: MOST_LOGGED - logged]:
            log.debug("mcp_stderr", server=name, line=one[:LONGEST_LOGGED].decode(errors="replace"))
            logged += 1
