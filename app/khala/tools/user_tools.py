"""Tools that users had made: programs that run in the sandbox, with arguments on stdin and the result on stdout."""

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

MOST_CODE = 64 * 1024
"""Bytes of a tool's code."""
LONGEST_DESCRIPTION = 2000
SECONDS = range(1, 61)
WHOLE = 64 * 1024
"""Bytes of a result that are read as JSON if they are; what is longer is text."""
COMPLAINT = 2000
"""Characters of what a program says of its failure."""
STARTING = 15.0
"""Seconds that a call may take beside its program: waiting for a free sandbox, and setting it up."""
REACHABLE: frozenset[ToolPermission] = frozenset({"code"})
"""What a program in the sandbox reaches: neither the network, nor the workspace, nor the person's screen."""


def checked(definition: UserToolDefinition, code: str, *, taken: frozenset[str]) -> None:
    """Raise `InvalidInput` for a tool that can't be; `taken` are the names of others."""
    if TOOL_NAME.fullmatch(definition.name) is None:
        raise InvalidInput("A name has 1 to 64 letters, digits, _ and -, and begins with a letter.", path="name")
    if SEPARATOR in definition.name:
        raise InvalidInput(f"{SEPARATOR} is for the tools of servers.", path="name")
    if definition.name in taken:
        raise InvalidInput(f"{definition.name} is the name of another tool or server.", path="name")
    if not 1 <= len(definition.description) <= LONGEST_DESCRIPTION:
        raise InvalidInput(f"A description has 1 to {LONGEST_DESCRIPTION:,} characters.", path="description")
    problem = schema_problem(definition.parameters)
    if problem is not None:
        raise InvalidInput(problem, path="parameters")
    _check_program(definition, code)


def _check_program(definition: UserToolDefinition, code: str) -> None:
    if not code.strip() or len(code.encode("utf-8", "replace")) > MOST_CODE:
        raise InvalidInput(f"Code has 1 to {MOST_CODE:,} bytes.", path="code")
    if definition.timeout not in SECONDS:
        raise InvalidInput(f"A timeout is {SECONDS[0]} to {SECONDS[-1]} seconds.", path="timeout")
    beyond = sorted(set(definition.permissions) - REACHABLE)
    if beyond:
        message = f"The sandbox has no {', '.join(beyond)}: it reaches neither the network, nor files, nor a screen."
        raise InvalidInput(message, path="permissions")


class UserProgramTool:
    """A tool that is a user's program. The code is read when it is called, if it is the one that was offered still."""

    def __init__(self, db: Database, sandbox: Sandbox, user_id: UUID, definition: UserToolDefinition) -> None:
        self._db = db
        self._sandbox = sandbox
        self._user_id = user_id
        self._definition = definition
        self.spec = ToolSpec(
            name=definition.name,
            description=definition.description,
            parameters=definition.parameters,
            permissions=REACHABLE,
            timeout=definition.timeout + STARTING,
            idempotent=definition.idempotent,
            source="user",
        )

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Run the program."""
        async with self._db.driver() as driver:
            code = await user_tools.code(driver, self._user_id, self._definition)
        seconds = self._definition.timeout
        program = Program(
            language=self._definition.language, code=code, stdin=msgspec.json.encode(args), seconds=float(seconds)
        )
        said = _BufferedOutput(call.sink)
        ended = await self._sandbox.run(program, said)
        if ended.code != 0:
            raise ToolError(_complaint(ended, seconds), code="timeout" if ended.reason == "timeout" else "failed")
        return said.result()


class _BufferedOutput:
    """What the program says: held while it is short, else passed on."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._held = bytearray()
        self._passed = False

    async def write(self, data: bytes) -> None:
        """More of it."""
        if not self._passed and len(self._held) + len(data) <= WHOLE:
            self._held += data
            return
        if not self._passed:
            self._passed = True
            await self._sink.write(bytes(self._held))
            self._held.clear()
        await self._sink.write(data)

    def result(self) -> CallResult:
        """All of it: JSON where it is."""
        if self._passed:
            return CallResult()
        try:
            return CallResult(output=msgspec.json.decode(bytes(self._held)), media_type="application/json")
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return CallResult(output=self._held.decode(errors="replace"))


def _complaint(ended: ProgramExit, seconds: int) -> str:
    """Why it failed, in a line, and then the end of what it said of that."""
    reasons = {
        "timeout": f"Timed out after {seconds} s.",
        "memory": "The program took more memory, processes or files than it may.",
        "output": "The program put out more than it may.",
    }
    line = reasons.get(ended.reason) or f"The program ended with code {ended.code}."
    said = ended.stderr.decode(errors="replace").strip()[-COMPLAINT:]
    return f"{line}\n{said}" if said else line
