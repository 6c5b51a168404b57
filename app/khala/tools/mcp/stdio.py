"""The transport to a server that is a program: it is started, exchanges lines over stdin and stdout, and is ended.

Ending a server ends all processes that it has started.
"""

import asyncio
import os
import re
import shutil
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import TypeAlias

import anyio
import structlog
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError, jsonrpc_message_adapter

from khala.tools.mcp.config import McpServerConfig
from khala.tools.mcp.connection_events import MAX_MESSAGE_BYTES, TOO_LARGE, ConnectionSignal
from khala.tools.supervised import ProgramNotFoundError, supervised

log = structlog.get_logger()

INHERITED = ("PATH", "HOME")
"""Variables of Khala's own environment that a server gets."""
CHUNK_BYTES = 1 << 16
EXIT_TIMEOUT_SECONDS = 0.5
"""Time for a server to end by itself after its input is closed."""
GRACE_SECONDS = 1.0
"""Time between SIGTERM and SIGKILL to the server."""
TERMINATE_TIMEOUT_SECONDS = 2.5
"""Time for the supervisor to end the server."""
MAX_LOGGED_LINES = 200
"""Lines of one server's standard error that are logged while it runs."""
MAX_LOGGED_CHARACTERS = 500
KEPT_END_BYTES = 200
"""Bytes that are kept of each end of a line that is too long; the message's id is in one of them."""
ID = re.compile(rb'"id"\s*:\s*(\d{1,15})')

MessageStreams: TypeAlias = tuple[ObjectReceiveStream[SessionMessage | Exception], ObjectSendStream[SessionMessage]]


def environment(server: McpServerConfig, own: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The complete environment of the server's process. `own` is the environment of this process."""
    return {name: own[name] for name in INHERITED if name in own} | server.env


@asynccontextmanager
async def start(server: McpServerConfig, signal: ConnectionSignal) -> AsyncIterator[MessageStreams]:
    """The message streams of the program. On exit the program and all its children end within about 3 seconds."""
    process = await _spawn(server)
    sent, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, to_send = anyio.create_memory_object_stream[SessionMessage](0)
    pumps = (_OutputReader(process, sent, signal), _write(process, to_send, signal), _log(process, server.name))
    tasks = [asyncio.create_task(pumps[0].pump()), *(asyncio.create_task(pump) for pump in pumps[1:])]
    try:
        yield received, outgoing
    finally:
        signal.end()
        await asyncio.shield(_end(process))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for stream in (sent, received, outgoing, to_send):
            stream.close()


async def _spawn(server: McpServerConfig) -> Process:
    env = environment(server)
    command, cwd = await asyncio.to_thread(_find_program, server, env.get("PATH", os.defpath))
    return await asyncio.create_subprocess_exec(
        *supervised([command, *server.args], GRACE_SECONDS),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=env,
        cwd=cwd,
        start_new_session=True,
        limit=CHUNK_BYTES,
    )


def _find_program(server: McpServerConfig, path: str) -> tuple[str, Path | None]:
    """The program's file, on the path or relative to the server's folder, and that folder."""
    cwd = None if server.cwd is None else Path(server.cwd).expanduser().absolute()
    command = server.command or ""
    for candidate in (command, str(Path(cwd or "", command))):
        if file := shutil.which(candidate, path=path):
            # Links are not resolved: the name of a link may matter to the program.
            return str(Path(file).absolute()), cwd
    raise ProgramNotFoundError


async def _end(process: Process) -> None:
    """Close the input, then terminate, then kill the process."""
    if process.stdin is not None:
        process.stdin.close()
    for seconds, number in ((EXIT_TIMEOUT_SECONDS, SIGTERM), (TERMINATE_TIMEOUT_SECONDS, SIGKILL)):
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await process.wait()
                return
        with suppress(ProcessLookupError):
            process.send_signal(number)
    await process.wait()


class _OutputReader:
    """Reads the server's output line by line. A line that is too long becomes an error response to its request."""

    def __init__(
        self, process: Process, sent: ObjectSendStream[SessionMessage | Exception], signal: ConnectionSignal
    ) -> None:
        self._process = process
        self._sent = sent
        self._signal = signal
        self._line = bytearray()
        self._dropped_bytes = 0

    async def pump(self) -> None:
        """Pass all messages on, until the end of the output."""
        assert self._process.stdout is not None
        try:
            async with self._sent:
                while chunk := await self._process.stdout.read(CHUNK_BYTES):
                    await self._receive(chunk)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
            pass  # the session has closed its streams
        finally:
            self._signal.end()
        # The server must not block on its output before it ends.
        while await self._process.stdout.read(CHUNK_BYTES):
            pass

    async def _receive(self, chunk: bytes) -> None:
        *ended_lines, rest = chunk.split(b"\n")
        for line in ended_lines:
            self._add(line)
            await self._pass_on()
        self._add(rest)

    def _add(self, more: bytes) -> None:
        """Add to the current line. If a line is too long, only both of its ends are kept."""
        self._line += more
        if len(self._line) > MAX_MESSAGE_BYTES:
            self._dropped_bytes += len(self._line) - 2 * KEPT_END_BYTES
            self._line[KEPT_END_BYTES:-KEPT_END_BYTES] = b""

    async def _pass_on(self) -> None:
        line, dropped_bytes = bytes(self._line), self._dropped_bytes
        self._line, self._dropped_bytes = bytearray(), 0
        message = _too_large(line) if dropped_bytes else _parse(line)
        if message is not None:
            await self._sent.send(message)


def _parse(line: bytes) -> SessionMessage | None:
    if not line.strip():
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        # Some servers print messages for people to their output.
        log.debug("mcp_line_ignored", line=line[:MAX_LOGGED_CHARACTERS].decode(errors="replace"))
        return None


def _too_large(ends: bytes) -> SessionMessage | None:
    match = ID.search(ends[:KEPT_END_BYTES]) or ID.search(ends[-KEPT_END_BYTES:])
    if match is None:
        return None
    error = ErrorData(code=TOO_LARGE, message=f"The response has more than {MAX_MESSAGE_BYTES:,} bytes.")
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=int(match[1]), error=error))


async def _write(process: Process, to_send: ObjectReceiveStream[SessionMessage], signal: ConnectionSignal) -> None:
    assert process.stdin is not None
    try:
        async with to_send:
            async for message in to_send:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(line.encode() + b"\n")
                await process.stdin.drain()
    except (ConnectionError, RuntimeError):
        # The server has closed its input, so no request can reach it, even if it runs on.
        signal.end()


async def _log(process: Process, name: str) -> None:
    """Log the first lines of the server's standard error."""
    assert process.stderr is not None
    logged, line = 0, b""
    while chunk := await process.stderr.read(CHUNK_BYTES):
        *ended_lines, line = (line + chunk).split(b"\n")
        line = line[:MAX_LOGGED_CHARACTERS]
        for ended_line in ended_lines[: MAX_LOGGED_LINES - logged]:
            log.debug("mcp_stderr", server=name, line=ended_line[:MAX_LOGGED_CHARACTERS].decode(errors="replace"))
            logged += 1
