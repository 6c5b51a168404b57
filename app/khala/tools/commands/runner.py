"""Runs command agents: plain under a supervisor, or in the sandbox."""

import asyncio
import math
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from khala.tools.commands.config import INHERITED, PROMPT, THREAD, Command
from khala.tools.commands.process import Receiver, exchange, started
from khala.tools.port import ToolError
from khala.tools.sandbox import Program, Sandbox
from khala.tools.sandbox.runtimes import LanguageRuntime
from khala.tools.supervised import ProgramNotFoundError

NOT_STARTED_CODES = (126, 127)
"""Exit codes by which shells, and the supervisor, say that a program is not executable or does not exist."""

CommandExitReason: TypeAlias = Literal["exited", "timeout", "unavailable", "stopped"]


class CommandExit(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended.

    `code` is None unless it `exited`; after a signal it is 128 plus the signal's number. `stopped`: the sandbox ended
    it because of a limit. `problem` says why it is `unavailable` or was `stopped`.
    """

    reason: CommandExitReason
    code: int | None = None
    problem: str = ""
    seconds: float = 0.0


class CommandOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The receivers of a command's standard output and standard error."""

    stdout: Receiver
    stderr: Receiver


class CommandRunner:
    """Runs the commands of the operator's configuration, a bounded number at once."""

    def __init__(self, commands: Mapping[str, Command], sandbox: Sandbox | None = None) -> None:
        self.commands = commands
        self._sandbox = sandbox
        self._slots = {name: asyncio.Semaphore(command.concurrency) for name, command in commands.items()}

    async def run(
        self,
        command: Command,
        prompt: str,
        thread_id: UUID,
        output: CommandOutput,
        *,
        kill_after: Callable[[], float] = lambda: math.inf,
    ) -> CommandExit:
        """Run the command, if necessary after others have ended. Raises the errors of the receivers.

        When this returns, raises or is cancelled, no process of the command is left. `kill_after` may shorten the time
        between SIGTERM and SIGKILL.
        """
        async with self._slots[command.name]:
            began = time.monotonic()
            if command.sandbox:
                end = await self._run_sandboxed(command, prompt, output)
            else:
                end = await self._run_plain(command, prompt, thread_id, output, kill_after)
            return msgspec.structs.replace(end, seconds=time.monotonic() - began)

    async def _run_plain(
        self,
        command: Command,
        prompt: str,
        thread_id: UUID,
        output: CommandOutput,
        kill_after: Callable[[], float],
    ) -> CommandExit:
        stdin = None if command.takes_argument else prompt.encode()
        try:
            async with (
                _working_folder(command, thread_id) as folder,
                started(
                    _argv(command, prompt),
                    stdin=stdin is not None,
                    environment=_environment(command),
                    folder=folder,
                    kill_after=kill_after,
                    max_kill_after=command.kill_after,
                ) as process,
                asyncio.timeout(command.timeout),
            ):
                code = await exchange(process, stdin, output.stdout, output.stderr)
        except TimeoutError:
            return CommandExit(reason="timeout")
        except ProgramNotFoundError:
            return CommandExit(reason="unavailable", problem=f"{command.argv[0]} is not an executable program.")
        except OSError as error:
            return CommandExit(reason="unavailable", problem=f"{command.argv[0]} can't be started: {error.strerror}.")
        return _exited(code)

    async def _run_sandboxed(self, command: Command, prompt: str, output: CommandOutput) -> CommandExit:
        if self._sandbox is None:
            return CommandExit(reason="unavailable", problem="This server has no sandbox.")
        program = Program(
            language="shell",
            code=_script(command, prompt),
            stdin=b"" if command.takes_argument else prompt.encode(),
            seconds=command.timeout,
        )
        runtime = LanguageRuntime(command=("/bin/sh",), suffix=".sh", shown=command.files)
        try:
            end = await self._sandbox.run(program, _ReceiverSink(output.stdout), runtime)
        except ToolError as error:
            return CommandExit(reason="unavailable", problem=error.message)
        await output.stderr(end.stderr)
        if end.code is not None:
            return _exited(end.code)
        if end.reason == "timeout":
            return CommandExit(reason="timeout")
        return CommandExit(reason="stopped", problem=f"The command reached its limit of {end.reason}.")


class _ReceiverSink:
    """A sink that passes everything on."""

    def __init__(self, receive: Receiver) -> None:
        self._receive = receive

    async def write(self, data: bytes) -> None:
        await self._receive(data)


def _exited(code: int) -> CommandExit:
    if code in NOT_STARTED_CODES:
        return CommandExit(
            reason="unavailable", code=code, problem="The command, or a program that it needs, is missing."
        )
    return CommandExit(reason="exited", code=code)


def _argv(command: Command, prompt: str) -> list[str]:
    # A prompt that begins with a dash must not become an option.
    shown = f" {prompt}" if prompt.startswith("-") else prompt
    return [word.replace(PROMPT, shown) for word in command.argv]


def _environment(command: Command) -> dict[str, str]:
    return {name: os.environ[name] for name in INHERITED if name in os.environ} | command.variables


def _script(command: Command, prompt: str) -> str:
    """A shell script that becomes the command, with its variables."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in command.variables.items()]
    return "\n".join([*exports, f"exec {shlex.join(_argv(command, prompt))}", ""])


@asynccontextmanager
async def _working_folder(command: Command, thread_id: UUID) -> AsyncIterator[Path]:
    """The command's folder, that of the thread, or a new one that is removed afterwards. Raises `OSError`."""
    if command.folder is not None:
        folder = Path(command.folder.replace(THREAD, str(thread_id)))
        await asyncio.to_thread(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
        yield folder
        return
    temporary = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="khala-command-"))
    try:
        yield temporary
    finally:
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, temporary, ignore_errors=True))
