"""The tool with which an agent runs code that it wrote."""

from typing import Any

from khala.domain.errors import PayloadTooLarge
from khala.domain.tools import ToolSpec
from khala.tools.port import CallContext, CallResult, Sink
from khala.tools.sandbox import Program, ProgramExit, Sandbox
from khala.tools.sandbox.program import MIB

SECONDS = 30.0
MARGIN = 15.0
"""For a place to become free, and for what is left to write."""
MOST_CODE = 100_000
MOST_STDIN = 1_000_000
TAIL = 4_000
"""Characters of standard error, and of output that is not kept, that the model reads."""
STOPPED = {
    "timeout": "stopped: it ran out of time",
    "memory": "stopped: it used too much memory or too many files",
    "output": "stopped: it wrote too much",
}
CODES = {"timeout": "timeout", "output": "too_large"}


class RunCode:
    """Runs a program in the sandbox; what it wrote goes to the sink, and what went wrong after it."""

    def __init__(self, sandbox: Sandbox, *, seconds: float = SECONDS) -> None:
        self._sandbox = sandbox
        self._seconds = seconds
        self.spec = ToolSpec(
            name="run_code",
            description=_description(seconds, sandbox.options.memory // MIB),
            parameters=_parameters(sorted(sandbox.languages)),
            permissions=frozenset({"code"}),
            timeout=seconds + MARGIN,
            cost="cheap",
            idempotent=True,
            approval="ask",
        )

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Run it. A program that fails is a result, from which the model can learn; `ToolError` where none can run."""
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
    """Passes output on to the sink, and remembers its end."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.size = 0
        self.tail = b""

    async def write(self, data: bytes) -> None:
        self.size += len(data)
        self.tail = (self.tail + data)[-TAIL:]
        await self._sink.write(data)


async def _result(end: ProgramExit, output: _RecordingSink) -> CallResult:
    ok = end.reason == "exited" and end.code == 0
    summary = f"{_ended(end)} in {end.seconds:.2f} s"
    notes = _notes(end, ok=ok)
    code = None if ok else CODES.get(end.reason, "failed")
    told = f"{summary}\n[the end of its output]\n{_text(output.tail)}{notes}"
    try:
        if end.reason == "output":
            return CallResult(ok=False, output=told, summary=summary, code=code)
        if notes:
            await output.write(notes.encode())
    except PayloadTooLarge:
        # The sink is full: what matters is told in its stead.
        return CallResult(ok=False, output=told, summary=summary, code="too_large")
    # Nothing in the sink is no output: say so, and make no blob of it.
    return CallResult(ok=ok, output=None if output.size else "", summary=summary, code=code)


def _notes(end: ProgramExit, *, ok: bool) -> str:
    """What the model should know beside the output."""
    stderr = _text(end.stderr).rstrip("\n")
    errors = f"\n[stderr]\n{stderr}\n" if stderr else ""
    return errors if ok else f"{errors}\n[{_ended(end)}]\n"


def _ended(end: ProgramExit) -> str:
    match end.reason:
        case "exited":
            return f"exited {end.code}"
        case "signal":
            return f"killed by signal {(end.code or 128) - 128}"
        case _:
            return STOPPED[end.reason]


def _text(data: bytes) -> str:
    return data.decode(errors="replace")[-TAIL:]


def _description(seconds: float, memory: int) -> str:
    return (
        "Runs a program and returns what it prints. It runs in a sandbox: no network, no files but its own in /tmp, "
        f"which are gone afterwards, at most {seconds:.0f} seconds and {memory} MiB of memory. Languages have their "
        "standard library only; shell is POSIX sh."
    )


def _parameters(languages: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "language": {"type": "string", "enum": languages},
            "code": {
                "type": "string",
                "maxLength": MOST_CODE,
                "description": "The program; print what you want to know.",
            },
            "stdin": {"type": "string", "maxLength": MOST_STDIN, "description": "What it reads on standard input."},
        },
        "required": ["language", "code"],
        "additionalProperties": False,
    }
