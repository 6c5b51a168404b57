"""The tool `run_code`: runs a program of the model in the sandbox."""

from typing import Any, assert_never

from khala.domain.errors import PayloadTooLarge
from khala.domain.tools import ToolSpec
from khala.tools.port import CallContext, CallResult, Sink
from khala.tools.sandbox import Program, ProgramExit, Sandbox
from khala.tools.sandbox.program import MIB

PROGRAM_TIMEOUT_SECONDS = 30.0
MARGIN_SECONDS = 15.0
"""Time of a call beyond its program's: to wait for a free sandbox, and to write the rest of the output."""
MAX_CODE_CHARACTERS = 100_000
MAX_STDIN_CHARACTERS = 1_000_000
MAX_TAIL_CHARACTERS = 4_000
"""Characters of standard error, and of output that is not stored, that the model reads."""
STOPPED = {
    "timeout": "stopped: it ran out of time",
    "memory": "stopped: it used too much memory or too many files",
    "output": "stopped: it wrote too much",
}
CODES = {"timeout": "timeout", "output": "too_large"}


class RunCode:
    """`run_code`: run a program. Its output goes to the sink, followed by its errors."""

    def __init__(self, sandbox: Sandbox, *, seconds: float = PROGRAM_TIMEOUT_SECONDS) -> None:
        self._sandbox = sandbox
        self._seconds = seconds
        self.spec = ToolSpec(
            name="run_code",
            description=_description(seconds, sandbox.options.memory // MIB),
            parameters=_parameters(sorted(sandbox.languages)),
            permissions=frozenset({"code"}),
            timeout=seconds + MARGIN_SECONDS,
            cost="cheap",
            idempotent=True,
            approval="ask",
        )

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Run the program. A failed program is a result for the model. `ToolError` means that no program can run."""
        program = Program(
            language=args["language"],
            code=args["code"],
            stdin=args.get("stdin", "").encode("utf-8", "replace"),
            seconds=self._seconds,
        )
        output = _RecordingSink(call.sink)
        end = await self._sandbox.run(program, output)
        return await _result(end, output)


class _RecordingSink:
    """Passes output on to a sink, and keeps the end of it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.size = 0
        self.tail = b""

    async def write(self, data: bytes) -> None:
        self.size += len(data)
        self.tail = (self.tail + data)[-MAX_TAIL_CHARACTERS:]
        await self._sink.write(data)


async def _result(end: ProgramExit, output: _RecordingSink) -> CallResult:
    ok = end.reason == "exited" and end.code == 0
    summary = f"{_describe(end)} in {end.seconds:.2f} s"
    notes = _notes(end, ok=ok)
    code = None if ok else CODES.get(end.reason, "failed")
    text = f"{summary}\n[the end of its output]\n{_text(output.tail)}{notes}"
    try:
        if end.reason == "output":
            return CallResult(ok=False, output=text, summary=summary, code=code)
        if notes:
            await output.write(notes.encode())
    except PayloadTooLarge:
        # The sink is full: the result has the end of the output instead.
        return CallResult(ok=False, output=text, summary=summary, code="too_large")
    # Without output the result is an empty text, not an empty blob.
    return CallResult(ok=ok, output=None if output.size else "", summary=summary, code=code)


def _notes(end: ProgramExit, *, ok: bool) -> str:
    """The errors of the program, for the model."""
    stderr = _text(end.stderr).rstrip("\n")
    errors = f"\n[stderr]\n{stderr}\n" if stderr else ""
    return errors if ok else f"{errors}\n[{_describe(end)}]\n"


def _describe(end: ProgramExit) -> str:
    match end.reason:
        case "exited":
            return f"exited {end.code}"
        case "signal":
            return f"killed by signal {(end.code or 128) - 128}"
        case "timeout" | "memory" | "output":
            return STOPPED[end.reason]
        case _:
            assert_never(end.reason)


def _text(data: bytes) -> str:
    return data.decode(errors="replace")[-MAX_TAIL_CHARACTERS:]


def _description(seconds: float, memory: int) -> str:
    return (
        "Run a program and return what it prints. It runs in a sandbox without network, with files only in /tmp, which "
        f"are deleted afterwards, for at most {seconds:.0f} seconds and in {memory} MiB of memory. Languages have only "
        "their standard library; shell is POSIX sh."
    )


def _parameters(languages: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "language": {"type": "string", "enum": languages},
            "code": {
                "type": "string",
                "maxLength": MAX_CODE_CHARACTERS,
                "description": "The program. Print the results.",
            },
            "stdin": {"type": "string", "maxLength": MAX_STDIN_CHARACTERS, "description": "Its standard input."},
        },
        "required": ["language", "code"],
        "additionalProperties": False,
    }
