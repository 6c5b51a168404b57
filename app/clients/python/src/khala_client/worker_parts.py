"""The parts that a worker writes, what it reads of a run, and the errors by which its functions end a run."""

import time
from typing import Any, NamedTuple

import msgspec

MAX_PART_BYTES = 4000
"""Bytes of JSON in one part. The server takes 4,096."""
MAX_SUMMARY_CHARACTERS = 120


ENDED = ("completed", "failed", "cancelled")
"""The states of calls that have ended."""


class ConversationTurn(NamedTuple):
    """The text of a message of the conversation. `role` is user, assistant or system."""

    role: str
    text: str


class RecordedCall(NamedTuple):
    """A call that former workers have made. `ended`: its outcome is stored."""

    id: str
    name: str
    args: dict[str, Any]
    ended: bool


class CallOutcome(NamedTuple):
    """How a call of `RunContext.tool_call` ended. `error` is the message of a call that failed or was denied."""

    output: Any = None
    error: str | None = None
    denied: bool = False


class AgentError(Exception):
    """An agent raises it to end its run with this message, which people see."""

    def __init__(self, message: str, *, code: str = "failed") -> None:
        super().__init__(message)
        self.code = code


class ApprovalDenied(AgentError):
    """A person has denied the call, or nobody has approved it in time."""


class ReplayDiverged(AgentError):
    """A function that was run again has written another text than the first time."""


class Released(BaseException):
    """The run was given back: another worker, or this one, runs the function again. Functions must not catch it."""


def result_part(call_id: str, *, ok: bool, summary: str, began: float, **result: Any) -> dict[str, Any]:
    """The part that ends a call, which began at this time. `result` has its `output`, its `blob` or neither."""
    line = " ".join(summary.split())[:MAX_SUMMARY_CHARACTERS]
    milliseconds = int((time.monotonic() - began) * 1000)
    data = {"toolCallId": call_id, "ok": ok, "summary": line, "durationMs": milliseconds}
    return {"kind": "tool-result", "data": data | result}


def storable(text: str) -> str:
    """The text without characters that the server cannot store."""
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def pieces_of(text: str) -> list[str]:
    """The text in pieces, each of which fits into a part."""
    found, rest = [], text
    while rest:
        size = min(len(rest), MAX_PART_BYTES - 32)
        while len(msgspec.json.encode(rest[:size])) > MAX_PART_BYTES - 32:
            size = size // 2
        found.append(rest[:size])
        rest = rest[size:]
    return found
