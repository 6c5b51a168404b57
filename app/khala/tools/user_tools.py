"""Tools of users: programs in the sandbox that read arguments from stdin and write a result to stdout."""

from typing import Any
from uuid import UUID

import msgspec

from khala.domain.errors import InvalidInput
from khala.domain.tools import SEPARATOR, TOOL_NAME, ToolPermission, ToolSpec
from khala.store.postgres.database import Database
from khala.store.tools import user_tools
from khala.store.tools.user_tools import UserToolDefinition
from khala.tools.port import CallContext, CallResult, Sink, ToolError
from khala.tools.sandbox import Program, ProgramExit, Sandbox
from khala.tools.validation.arguments import schema_problem

MAX_CODE_BYTES = 64 * 1024
MAX_DESCRIPTION_CHARACTERS = 2000
TIMEOUT_SECONDS = range(1, 61)
"""Allowed timeouts of a tool."""
MAX_JSON_BYTES = 64 * 1024
"""Bytes of a result that may be JSON; a longer result is text."""
MAX_ERROR_CHARACTERS = 2000
"""Characters of a failed program's standard error that the model reads."""
MARGIN_SECONDS = 15.0
"""Time of a call beyond its program's: to wait for a free sandbox, and to set it up."""
ALLOWED_PERMISSIONS: frozenset[ToolPermission] = frozenset({"code"})
"""A program in the sandbox has no network, no workspace and no access to the user's screen."""


def check_definition(definition: UserToolDefinition, code: str, *, taken: frozenset[str]) -> None:
    """Raise `InvalidInput` for an invalid definition. `taken` are the names of other tools and servers."""
    if TOOL_NAME.fullmatch(definition.name) is None:
        raise InvalidInput("A name has 1 to 64 letters, digits, _ and -, and begins with a letter.", path="name")
    if SEPARATOR in definition.name:
        raise InvalidInput(f"{SEPARATOR} is reserved for tools of MCP servers.", path="name")
    if definition.name in taken:
        raise InvalidInput(f"{definition.name} is the name of another tool or server.", path="name")
    if not 1 <= len(definition.description) <= MAX_DESCRIPTION_CHARACTERS:
        raise InvalidInput(f"A description has 1 to {MAX_DESCRIPTION_CHARACTERS:,} characters.", path="description")
    problem = schema_problem(definition.parameters)
    if problem is not None:
        raise InvalidInput(problem, path="parameters")
    _check_program(definition, code)


def _check_program(definition: UserToolDefinition, code: str) -> None:
    if not code.strip() or len(code.encode("utf-8", "replace")) > MAX_CODE_BYTES:
        raise InvalidInput(f"Code has 1 to {MAX_CODE_BYTES:,} bytes.", path="code")
    if definition.timeout not in TIMEOUT_SECONDS:
        raise InvalidInput(f"A timeout is {TIMEOUT_SECONDS[0]} to {TIMEOUT_SECONDS[-1]} seconds.", path="timeout")
    disallowed = sorted(set(definition.permissions) - ALLOWED_PERMISSIONS)
    if disallowed:
        message = f"The sandbox does not allow {', '.join(disallowed)}: it has no network, no workspace and no screen."
        raise InvalidInput(message, path="permissions")


class UserProgramTool:
    """A tool that is a user's program. Each call reads the code, which must still be the one that was offered."""

    def __init__(self, db: Database, sandbox: Sandbox, user_id: UUID, definition: UserToolDefinition) -> None:
        self._db = db
        self._sandbox = sandbox
        self._user_id = user_id
        self._definition = definition
        self.spec = ToolSpec(
            name=definition.name,
            description=definition.description,
            parameters=definition.parameters,
            permissions=ALLOWED_PERMISSIONS,
            timeout=definition.timeout + MARGIN_SECONDS,
            idempotent=definition.idempotent,
            source="user",
        )

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Run the program with the arguments on its standard input."""
        async with self._db.driver() as driver:
            code = await user_tools.code(driver, self._user_id, self._definition)
        seconds = self._definition.timeout
        program = Program(
            language=self._definition.language, code=code, stdin=msgspec.json.encode(args), seconds=float(seconds)
        )
        output = _BufferedOutput(call.sink)
        program_exit = await self._sandbox.run(program, output)
        if program_exit.code != 0:
            raise ToolError(
                _error_message(program_exit, seconds), code="timeout" if program_exit.reason == "timeout" else "failed"
            )
        return output.result()


class _BufferedOutput:
    """Holds the program's output while it is short. Longer output goes to the sink."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._buffer = bytearray()
        self._has_overflowed = False

    async def write(self, data: bytes) -> None:
        """Add output."""
        if not self._has_overflowed and len(self._buffer) + len(data) <= MAX_JSON_BYTES:
            self._buffer += data
            return
        if not self._has_overflowed:
            self._has_overflowed = True
            await self._sink.write(bytes(self._buffer))
            self._buffer.clear()
        await self._sink.write(data)

    def result(self) -> CallResult:
        """The whole output: as JSON if it is valid JSON, else as text."""
        if self._has_overflowed:
            return CallResult()
        try:
            return CallResult(output=msgspec.json.decode(bytes(self._buffer)), media_type="application/json")
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return CallResult(output=self._buffer.decode(errors="replace"))


def _error_message(program_exit: ProgramExit, seconds: int) -> str:
    """The reason of the failure, and the end of the program's standard error."""
    reasons = {
        "timeout": f"Timed out after {seconds} s.",
        "memory": "The program exceeded its limit of memory, processes or files.",
        "output": "The program exceeded its limit of output.",
    }
    line = reasons.get(program_exit.reason) or f"The program ended with exit code {program_exit.code}."
    stderr = program_exit.stderr.decode(errors="replace").strip()[-MAX_ERROR_CHARACTERS:]
    return f"{line}\n{stderr}" if stderr else line
