"""Builds a chat completion of OpenAI's protocol from the parts of a run, as chunks or as a whole.

Its only I/O is loading the arguments of tool calls from blobs.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime
from typing import TypeAlias, assert_never

import msgspec

from khala.api.openai.errors import RunFailed
from khala.api.openai.types import JsonObject
from khala.domain.chat import SendResult
from khala.domain.parts import (
    BlobRef,
    Compaction,
    Finish,
    MemoryRecall,
    Notice,
    Part,
    PartData,
    ReasoningDelta,
    Route,
    RunFailure,
    Step,
    TextDelta,
    TokenUsage,
    ToolCall,
    ToolResult,
    ToolStatus,
)
from khala.domain.run_progress import REPROMPTED_NOTICE

REASONS = {"length": "length", "tool_calls": "tool_calls"}
"""Finish reasons that OpenAI's protocol has. Every other reason of a completed run becomes `stop`."""
STEP_SEPARATOR = "\n\n"
"""Separates the text of two steps."""

LoadArguments: TypeAlias = Callable[[BlobRef], Awaitable[str]]
"""Reads the arguments of a call that were too large for a part."""


class ChatCompletionBuilder:
    """The completion of one run, as far as its parts have been added."""

    def __init__(self, sent: SendResult, *, model: str, created: int, functions: Sequence[str]) -> None:
        self._header: JsonObject = {"id": f"chatcmpl-{sent.run_id.hex}", "created": created, "model": model}
        self._functions = frozenset(functions)
        self._text = ""
        self._step_text = ""
        self._new_step = False
        self._failure: RunFailure | None = None
        self.calls: list[JsonObject] = []
        self.steps = 0
        self.finish: Finish | None = None

    async def add(self, parts: Sequence[Part], load: LoadArguments) -> list[JsonObject]:
        """Add parts and return the deltas that they produce."""
        return [delta for data, _ in without_failure_text(parts) for delta in await self._add_part(data, load)]

    def chunk(self, delta: JsonObject, finish_reason: str | None = None) -> JsonObject:
        """Return a chunk of a stream."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**self._header, "object": "chat.completion.chunk", "choices": [choice]}

    def usage_chunk(self) -> JsonObject:
        """Return the last chunk of a stream whose request asked for the usage."""
        return {**self._header, "object": "chat.completion.chunk", "choices": [], "usage": self.usage}

    @property
    def finish_reason(self) -> str:
        """OpenAI's finish reason. Raises `RunFailed` if the run has failed or was canceled."""
        assert self.finish is not None
        if self._failure is not None:
            raise RunFailed(self._failure.code, self._failure.message)
        if self.finish.reason == "canceled":
            raise RunFailed("canceled", "This answer was canceled.")
        return REASONS.get(self.finish.reason, "stop")

    @property
    def usage(self) -> JsonObject:
        """The tokens that the run used."""
        used = self.finish.usage if self.finish else TokenUsage()
        return {
            "prompt_tokens": used.input_tokens,
            "completion_tokens": used.output_tokens,
            "total_tokens": used.input_tokens + used.output_tokens,
        }

    def completion(self) -> JsonObject:
        """Return the completion: the text of the last step, and the calls of the client's own functions."""
        reason = self.finish_reason
        message: JsonObject = {"role": "assistant", "content": self._step_text or None, "refusal": None}
        if self.calls:
            message["tool_calls"] = self.calls
        elif not self._step_text:
            message["content"] = ""
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
        return {**self._header, "object": "chat.completion", "choices": [choice], "usage": self.usage}

    async def _add_part(self, part: PartData, load: LoadArguments) -> list[JsonObject]:
        match part:
            case TextDelta(text=text) if text:
                return [{"content": self._append_text(text)}]
            case Step():
                self.steps, self._new_step = part.step, True
            case Notice(code=code) if code == REPROMPTED_NOTICE:
                self._new_step = True
            case ToolCall() if part.tool in self._functions:
                return [await self._add_call(part, load)]
            case RunFailure():
                self._failure = part
            case Finish():
                self.finish = part
            case (
                TextDelta()
                | Notice()
                | ToolCall()
                | ToolStatus()
                | ToolResult()
                | ReasoningDelta()
                | Compaction()
                | MemoryRecall()
                | Route()
            ):
                pass
            case _:
                assert_never(part)
        return []

    def _append_text(self, text: str) -> str:
        """Return the text as the delta contains it: the text of a further step begins a paragraph."""
        separator = STEP_SEPARATOR if self._new_step and self._text else ""
        if self._new_step:
            self._step_text, self._new_step = "", False
        self._text += text
        self._step_text += text
        return separator + text

    async def _add_call(self, part: ToolCall, load: LoadArguments) -> JsonObject:
        if part.args is None and part.args_blob is not None:
            args = await load(part.args_blob)
        else:
            args = msgspec.json.encode(part.args or {}).decode()
        call = {"id": part.tool_call_id, "type": "function", "function": {"name": part.tool, "arguments": args}}
        self.calls.append(call)
        return {"tool_calls": [{"index": len(self.calls) - 1, **call}]}


def without_failure_text(parts: Sequence[Part]) -> Iterator[tuple[PartData, datetime]]:
    """Yield the data and the time of each part, without text that repeats the failure after it.

    A failure is also stored as text for people. Clients of this protocol get it once, as an error.
    """
    known = [(data, part.created_at) for part in parts if (data := part.read()) is not None]
    for index, (data, at) in enumerate(known):
        following = known[index + 1][0] if index + 1 < len(known) else None
        if isinstance(data, TextDelta) and isinstance(following, RunFailure) and data.text.endswith(following.message):
            rest = data.text.removesuffix(following.message).removesuffix("\n\n")
            yield TextDelta(text=rest), at
        else:
            yield data, at
