"""An answer in OpenAI's words: chunks while it is written, or the whole of it. No I/O but reading what was put away."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from khala.api.openai.errors import RunFailed
from khala.domain.chat import SendResult
from khala.domain.parts import (
    BlobRef,
    Finish,
    Notice,
    Part,
    PartData,
    RunFailure,
    Step,
    TextDelta,
    TokenUsage,
    ToolCall,
)
from khala.domain.run_progress import REPROMPTED_NOTICE

REASONS = {"length": "length", "tool_calls": "tool_calls"}
"""Finish reasons that OpenAI has a word for; all other answers that came to their end have stopped."""
APART = "\n\n"
"""Between what was said before some tools and after them."""

Load: TypeAlias = Callable[[BlobRef], Awaitable[str]]
"""Reads a call's arguments that were too large for a part."""
Json: TypeAlias = dict[str, Any]


class Answer:
    """One run's answer, as far as it has come."""

    def __init__(self, sent: SendResult, *, model: str, created: int, functions: Sequence[str]) -> None:
        self._about: Json = {"id": f"chatcmpl-{sent.run_id.hex}", "created": created, "model": model}
        self._functions = frozenset(functions)
        self._said = ""
        self._round = ""
        self._pause = False
        self._failure: RunFailure | None = None
        self.calls: list[Json] = []
        self.steps = 0
        self.finish: Finish | None = None

    async def hear(self, parts: Sequence[Part], load: Load) -> list[Json]:
        """Take these parts in; the deltas that they make."""
        return [delta for data, _ in without_failure_text(parts) for delta in await self._heard(data, load)]

    def chunk(self, delta: Json, finish_reason: str | None = None) -> Json:
        """A chunk of a stream."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**self._about, "object": "chat.completion.chunk", "choices": [choice]}

    def usage_chunk(self) -> Json:
        """The last chunk of a stream that is to tell the usage."""
        return {**self._about, "object": "chat.completion.chunk", "choices": [], "usage": self.usage}

    @property
    def reason(self) -> str:
        """Why it ended, in OpenAI's words. Raises `RunFailed` if it has come to nothing."""
        assert self.finish is not None
        if self._failure is not None:
            raise RunFailed(self._failure.code, self._failure.message)
        if self.finish.reason == "canceled":
            raise RunFailed("canceled", "This answer was called off.")
        return REASONS.get(self.finish.reason, "stop")

    @property
    def usage(self) -> Json:
        """The tokens that it took."""
        used = self.finish.usage if self.finish else TokenUsage()
        return {
            "prompt_tokens": used.input_tokens,
            "completion_tokens": used.output_tokens,
            "total_tokens": used.input_tokens + used.output_tokens,
        }

    def whole(self) -> Json:
        """The completion: the text that was said last, after all rounds of tools but the caller's own."""
        reason = self.reason
        message: Json = {"role": "assistant", "content": self._round or None, "refusal": None}
        if self.calls:
            message["tool_calls"] = self.calls
        elif not self._round:
            message["content"] = ""
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
        return {**self._about, "object": "chat.completion", "choices": [choice], "usage": self.usage}

    async def _heard(self, part: PartData, load: Load) -> list[Json]:
        match part:
            case TextDelta(text=text) if text:
                return [{"content": self._say(text)}]
            case Step():
                self.steps, self._pause = part.step, True
            case Notice(code=code) if code == REPROMPTED_NOTICE:
                self._pause = True
            case ToolCall() if part.tool in self._functions:
                return [await self._call(part, load)]
            case RunFailure():
                self._failure = part
            case Finish():
                self.finish = part
            case _:
                pass
        return []

    def _say(self, text: str) -> str:
        """The text as it is told: what comes after tools begins a paragraph."""
        before = APART if self._pause and self._said else ""
        if self._pause:
            self._round, self._pause = "", False
        self._said += text
        self._round += text
        return before + text

    async def _call(self, part: ToolCall, load: Load) -> Json:
        if part.args is None and part.args_blob is not None:
            args = await load(part.args_blob)
        else:
            args = msgspec.json.encode(part.args or {}).decode()
        call = {"id": part.tool_call_id, "type": "function", "function": {"name": part.tool, "arguments": args}}
        self.calls.append(call)
        return {"tool_calls": [{"index": len(self.calls) - 1, **call}]}


def without_failure_text(parts: Sequence[Part]) -> Iterator[tuple[PartData, datetime]]:
    """What the parts say, and when. A failure is also said as text, for people; here it is told once, as a failure."""
    read = [(data, part.created_at) for part in parts if (data := part.read()) is not None]
    for place, (data, at) in enumerate(read):
        after = read[place + 1][0] if place + 1 < len(read) else None
        if isinstance(data, TextDelta) and isinstance(after, RunFailure) and data.text.endswith(after.message):
            rest = data.text.removesuffix(after.message).removesuffix("\n\n")
            yield TextDelta(text=rest), at
        else:
            yield data, at
