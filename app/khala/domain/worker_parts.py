"""The rules for the parts that remote workers write: which kinds, of which size, in which order. Pure.

A worker cannot write what the server alone decides: the end of a run, approvals, memories and routes. It refers to
blobs as the server has returned them.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from khala.domain.errors import Conflict, InvalidInput, PayloadTooLarge
from khala.domain.executor_protocol import (
    MAX_CALL_ID_CHARACTERS,
    MAX_MILLISECONDS,
    DecidedApproval,
    WorkerPart,
)
from khala.domain.flush_policy import replace_unstorable
from khala.domain.fold import Content, ToolBlock
from khala.domain.generation import FORMAT_REPAIR_NOTICE
from khala.domain.json_bodies import is_deeper
from khala.domain.parts import (
    MAX_INLINE_BYTES,
    Notice,
    PartData,
    ReasoningDelta,
    Step,
    TextDelta,
    ToolCall,
    ToolResult,
    ToolStatus,
    encode,
)
from khala.domain.tools import TOOL_NAME

MAX_ESCAPE_BYTES = 8
"""Bytes of a character in JSON are fewer, on average also with what is around the text."""
MAX_DEPTH = 32
"""Nested objects and arrays in one part."""
MAX_SUMMARY_CHARACTERS = 120
MAX_REASON_CHARACTERS = 500
MAX_NOTICE_CHARACTERS = 1_000
MAX_STEP = 100_000
NOTICE_CODE = re.compile(r"[a-z][a-z0-9_]{0,63}")

WrittenPart: TypeAlias = TextDelta | ReasoningDelta | ToolCall | ToolStatus | ToolResult | Step | Notice
KINDS: Mapping[str, type[WrittenPart]] = {
    "text-delta": TextDelta, "reasoning-delta": ReasoningDelta, "tool-call": ToolCall, "tool-status": ToolStatus,
    "tool-result": ToolResult, "step": Step, "notice": Notice,
}  # fmt: skip
"""The kinds that a worker may write."""
OPEN = ("queued", "running", "blocked")


def read_part(part: WorkerPart, index: int, *, reasoning: bool) -> PartData:
    """The part to store. `index` is its place in the request. Raises `InvalidInput` and `PayloadTooLarge`."""
    path = f"parts[{index}]"
    kind = KINDS.get(part.kind)
    if kind is None:
        raise InvalidInput(f"A worker writes parts of the kinds {', '.join(KINDS)}.", path=f"{path}.kind")
    text = part.data.get("text") if kind is TextDelta and len(part.data) == 1 else None
    if isinstance(text, str) and 0 < len(text) < MAX_INLINE_BYTES // MAX_ESCAPE_BYTES:
        return TextDelta(text=replace_unstorable(text))  # As below, but faster.
    unknown = part.data.keys() - set(kind.__struct_encode_fields__)
    if unknown:
        raise InvalidInput(f"A part of this kind has no field {min(unknown)!r}.", path=f"{path}.data")
    if is_deeper(part.data, MAX_DEPTH):
        raise InvalidInput(f"A part has at most {MAX_DEPTH} levels.", path=f"{path}.data")
    try:
        data: PartData = msgspec.convert(part.data, type=kind)
        message = _problem(data, reasoning=reasoning)
    except msgspec.ValidationError as error:
        raise InvalidInput(str(error), path=f"{path}.data") from error
    if message is not None:
        raise InvalidInput(message, path=f"{path}.data")
    if isinstance(data, TextDelta | ReasoningDelta):
        data = msgspec.structs.replace(data, text=replace_unstorable(data.text))
    if size_of(data) > MAX_INLINE_BYTES:
        raise PayloadTooLarge(f"A part has at most {MAX_INLINE_BYTES:,} bytes of JSON: {path}.")
    return data


def size_of(part: PartData) -> int:
    """The bytes of the part's JSON, or an estimate within the limit for a short text, as workers mostly send it."""
    if isinstance(part, TextDelta | ReasoningDelta) and len(part.text) < MAX_INLINE_BYTES // MAX_ESCAPE_BYTES:
        return len(part.text) * (1 if part.text.isascii() and part.text.isprintable() else MAX_ESCAPE_BYTES)
    return len(encode(part)[1].encode())


def _problem(part: PartData, *, reasoning: bool) -> str | None:
    """The rule that the part breaks, regardless of the parts before it."""
    match part:
        case ReasoningDelta() if not reasoning:
            return "This server stores no reasoning."
        case TextDelta(text="") | ReasoningDelta(text=""):
            return "This text is empty."
        case ToolCall() if TOOL_NAME.fullmatch(part.tool) is None:
            return "A tool's name has 1 to 64 letters, digits, _ and -, and begins with a letter."
        case ToolCall() if part.args is not None and part.args_blob is not None:
            return "A call has its arguments in args or argsBlob."
        case ToolCall() if not 0 <= part.step <= MAX_STEP:
            return f"A worker's call has a step from 0 to {MAX_STEP:,}."
        case ToolStatus() if part.state not in ("queued", "running", "cancelled"):
            return "A worker writes the states queued, running and cancelled. Ask for an approval to block a call."
        case ToolStatus() if (part.digest, part.expires_at, part.args, part.args_blob) != (None, None, None, None):
            return "A worker's status has a state and a reason only."
        case ToolStatus() if len(part.reason or "") > MAX_REASON_CHARACTERS:
            return f"A reason has at most {MAX_REASON_CHARACTERS} characters."
        case ToolResult() if part.output is not None and part.blob is not None:
            return "A result has its output in output or blob."
        case ToolResult() if not 0 <= part.duration_ms <= MAX_MILLISECONDS:
            return "The duration of a result is not negative."
        case ToolResult() if len(part.summary) > MAX_SUMMARY_CHARACTERS or "\n" in part.summary:
            return f"A summary is one line of at most {MAX_SUMMARY_CHARACTERS} characters."
        case Step() if not (0 <= part.step <= MAX_STEP and 0 <= part.max_steps <= MAX_STEP and part.tool_count >= 0):
            return "The numbers of a step are out of bounds."
        case Step() if part.usage is not None or part.cost_usd is not None:
            return "A worker reports usage in receipts."
        case Notice() if NOTICE_CODE.fullmatch(part.code) is None or part.code == FORMAT_REPAIR_NOTICE:
            return "A notice has a code of lower-case letters, digits and _."
        case Notice() if len(part.message) > MAX_NOTICE_CHARACTERS:
            return f"A notice has at most {MAX_NOTICE_CHARACTERS:,} characters."
        case _:
            return _call_id_problem(part)


def _call_id_problem(part: PartData) -> str | None:
    call_id = getattr(part, "tool_call_id", None)
    if call_id is None or 1 <= len(call_id) <= MAX_CALL_ID_CHARACTERS:
        return None
    return f"A toolCallId has 1 to {MAX_CALL_ID_CHARACTERS} characters."


class CallStates:
    """The states of the tool calls of one run, which decide what may be written about each."""

    def __init__(self, content: Content) -> None:
        self.calls = sum(isinstance(block, ToolBlock) for block in content)
        """The number of calls."""
        self._open = {
            block.tool_call_id: block for block in content if isinstance(block, ToolBlock) and block.state in OPEN
        }
        self._ended = {
            block.tool_call_id for block in content if isinstance(block, ToolBlock) and block.state not in OPEN
        }

    def copy(self) -> "CallStates":
        """The same states, to try what a request would change."""
        other = CallStates(())
        other.calls, other._open, other._ended = self.calls, dict(self._open), set(self._ended)
        return other

    def blocked(self) -> bool:
        """Whether a call waits for an approval."""
        return any(block.state == "blocked" for block in self._open.values())

    def open_call(self, call_id: str) -> ToolBlock:
        """The call, which has not ended. Raises `Conflict`."""
        block = self._open.get(call_id)
        if block is None:
            raise Conflict(f"The call {call_id!r} {'has ended' if call_id in self._ended else 'was not made'}.")
        return block

    def apply(self, part: PartData, decisions: Mapping[str, DecidedApproval]) -> PartData:
        """Apply the part, and return it as it is stored. Raises `Conflict` if it does not fit the state of its call."""
        match part:
            case ToolCall():
                if part.tool_call_id in self._open or part.tool_call_id in self._ended:
                    raise Conflict(f"The call {part.tool_call_id!r} was made before.")
                self.calls += 1
                self._open[part.tool_call_id] = ToolBlock(
                    tool_call_id=part.tool_call_id,
                    tool=part.tool,
                    state="queued",
                    args=part.args,
                    args_blob=part.args_blob,
                )
            case ToolStatus():
                return self._apply_status(part, decisions)
            case ToolResult():
                block = self.open_call(part.tool_call_id)
                decision = decisions.get(part.tool_call_id)
                if block.state == "blocked" and (part.ok or decision is None):
                    raise Conflict("This call waits for an approval. It has no result before it runs.")
                self._end(part.tool_call_id)
        return part

    def _apply_status(self, part: ToolStatus, decisions: Mapping[str, DecidedApproval]) -> ToolStatus:
        block = self.open_call(part.tool_call_id)
        decision = decisions.get(part.tool_call_id)
        if part.state == "cancelled":
            self._end(part.tool_call_id)
            return part
        if part.state == "blocked":
            self._open[part.tool_call_id] = msgspec.structs.replace(block, state="blocked")
            return part
        if decision is not None and part.state == "running":
            if decision.state != "approved":
                raise Conflict(f"This call was {decision.state}, so it does not run.")
            part = with_decision(part, decision)
        elif block.state == "blocked":
            raise Conflict("This call waits for an approval.")
        self._open[part.tool_call_id] = msgspec.structs.replace(block, state=part.state)
        return part

    def _end(self, call_id: str) -> None:
        del self._open[call_id]
        self._ended.add(call_id)


def with_decision(part: ToolStatus, decision: DecidedApproval) -> ToolStatus:
    """The status of an approved call that begins, with the person who approved it and the approved arguments."""
    return msgspec.structs.replace(part, reason=_approved_reason(decision), args=_small(decision.edited_args))


def _approved_reason(decision: DecidedApproval) -> str:
    return f"Approved by {decision.decided_name}." if decision.decided_name else "Approved."


def _small(args: dict[str, Any] | None) -> dict[str, Any] | None:
    """The arguments, unless they are too long for a part. The approval has them."""
    return args if args is None or len(msgspec.json.encode(args)) <= MAX_INLINE_BYTES // 2 else None


def digest(part: PartData) -> int:
    """A hash of the stored part, by which a repeated part is recognised. It is not negative and has 64 bits."""
    if isinstance(part, TextDelta):
        return int.from_bytes(hashlib.blake2b(part.text.encode(), digest_size=8, key=b"text").digest(), "big")
    kind, text = encode(part)
    canonical = msgspec.json.encode([kind, msgspec.json.decode(text)], order="deterministic")
    return int.from_bytes(hashlib.blake2b(canonical, digest_size=8).digest(), "big")
