"""Builds a chat completion of OpenAI's protocol from the parts of a run, as chunks or as a whole.

Its only I/O is loading the arguments of tool calls from blobs.
"""

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import TypeAlias, assert_never

import msgspec

from khala.api.openai.errors import RunFailed
from khala.api.openai.types import JsonObject
from khala.domain.chat import SendResult
from khala.domain.generation import FORMAT_MISMATCH, FORMAT_REPAIR_NOTICE
from khala.domain.parts import (
    BlobRef,
    Compaction,
    Finish,
    Logprobs,
    MemoryRecall,
    Notice,
    Part,
    PartData,
    ReasoningDelta,
    Route,
    RunFailure,
    Step,
    TextDelta,
    TokenLogprob,
    TokenUsage,
    ToolCall,
    ToolResult,
    ToolStatus,
    without_failure_text,
)
from khala.domain.run_progress import REPROMPTED_NOTICE

REASONS = {"length": "length", "tool_calls": "tool_calls"}
"""Finish reasons that OpenAI's protocol has. Every other reason of a completed run becomes `stop`."""
STEP_SEPARATOR = "\n\n"
"""Separates the text of two steps."""

LoadArguments: TypeAlias = Callable[[BlobRef], Awaitable[str]]
"""Reads the arguments of a call that were too large for a part."""


class ChatCompletionBuilder:
    """The completion of one run, as far as its parts have been added.

    `streams`: the client reads the deltas, and text that does not fit the requested format cannot be taken back.
    `holds`: deltas of text are returned only when the text is known to fit. `index` is the number of the choice.
    """

    def __init__(
        self,
        sent: SendResult,
        *,
        model: str,
        created: int,
        functions: frozenset[str],
        streams: bool = False,
        holds: bool = False,
        index: int = 0,
    ) -> None:
        self._header: JsonObject = {"id": f"chatcmpl-{sent.run_id.hex}", "created": created, "model": model}
        self._index = index
        self._functions = functions
        self._streams = streams
        self._holds = holds
        self._held: list[JsonObject] = []
        self._has_sent_text = False
        self._logprobs: list[JsonObject] = []
        self._has_earlier_text = False
        """Whether steps before the current one have text."""
        self._step_texts: list[str] = []
        self._new_step = False
        self._failure: RunFailure | None = None
        self.calls: list[JsonObject] = []
        self.steps = 0
        self.finish: Finish | None = None

    async def add(self, parts: Sequence[Part], load: LoadArguments) -> list[JsonObject]:
        """Add parts and return the deltas that they produce.

        Raises `RunFailed` if text of an earlier delta does not fit the requested format, while the run goes on.
        """
        deltas: list[JsonObject] = []
        for _, data in without_failure_text(parts):
            if isinstance(data, TextDelta) and data.text:
                self._held.append({"content": self._append_text(data.text)})
                continue
            if isinstance(data, Logprobs):
                tokens = list(map(_logprob, data.tokens))
                self._logprobs += tokens
                self._held.append({"logprobs": tokens})
                continue
            if isinstance(data, Notice) and data.code == FORMAT_REPAIR_NOTICE:
                self._discard_text(data)
            if isinstance(data, Step | Finish):
                deltas += self._take_held()
                self._has_sent_text = False
            deltas += await self._add_part(data, load)
        return deltas if self._holds else [*deltas, *self._take_held()]

    @property
    def text_key(self) -> Hashable | None:
        """The facts that the chunk of more text depends on, beside the text. None if it may have to be held back."""
        if self._holds or self._held or self._new_step:
            return None
        return "chat-completion", self._header["id"], self._header["model"], self._index

    def add_text(self, text: str) -> None:
        """Add text whose chunk is known: see `text_key`."""
        self._step_texts.append(text)
        self._has_sent_text = True

    def chunk(self, delta: JsonObject, finish_reason: str | None = None) -> JsonObject:
        """Return a chunk of a stream."""
        logprobs = _logprobs(delta["logprobs"]) if "logprobs" in delta else None
        delta = {} if logprobs is not None else delta
        choice = {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return {**self._header, "object": "chat.completion.chunk", "choices": [choice]}

    def usage_chunk(self, usage: JsonObject) -> JsonObject:
        """Return the last chunk of a stream whose request asked for the usage."""
        return {**self._header, "object": "chat.completion.chunk", "choices": [], "usage": usage}

    @property
    def has_failed(self) -> bool:
        """Whether the run has ended without an answer."""
        return self.finish is not None and (self._failure is not None or self.finish.reason == "canceled")

    def raise_failure(self) -> None:
        """Raise `RunFailed` if the run has failed or was canceled."""
        if self._failure is not None:
            raise RunFailed(self._failure.code, self._failure.message)
        if self.has_failed:
            raise RunFailed("canceled", "This answer was canceled.")

    @property
    def finish_reason(self) -> str:
        """OpenAI's finish reason. Raises `RunFailed` if the run has failed or was canceled."""
        assert self.finish is not None
        self.raise_failure()
        return REASONS.get(self.finish.reason, "stop")

    @property
    def usage(self) -> JsonObject:
        """The tokens that the run used."""
        used = self.finish.usage if self.finish else TokenUsage()
        return {
            "prompt_tokens": used.input_tokens,
            "completion_tokens": used.output_tokens,
            "total_tokens": used.input_tokens + used.output_tokens,
            "prompt_tokens_details": {"cached_tokens": (self.finish and self.finish.cached_tokens) or 0},
            "completion_tokens_details": {"reasoning_tokens": (self.finish and self.finish.reasoning_tokens) or 0},
        }

    def completion(self) -> JsonObject:
        """Return the completion: the text of the last step, and the calls of the client's own functions."""
        reason = self.finish_reason
        text = "".join(self._step_texts)
        message: JsonObject = {"role": "assistant", "content": text or None, "refusal": None}
        if self.calls:
            message["tool_calls"] = self.calls
        elif not text:
            message["content"] = ""
        logprobs = _logprobs(self._logprobs) if self._logprobs else None
        choice = {"index": self._index, "message": message, "logprobs": logprobs, "finish_reason": reason}
        return {**self._header, "object": "chat.completion", "choices": [choice], "usage": self.usage}

    async def _add_part(self, part: PartData, load: LoadArguments) -> list[JsonObject]:
        match part:
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
                | Logprobs()
                | Compaction()
                | MemoryRecall()
                | Route()
            ):
                pass
            case _:
                assert_never(part)
        return []

    def _take_held(self) -> list[JsonObject]:
        held, self._held = self._held, []
        self._has_sent_text = self._has_sent_text or bool(held)
        return held

    def _discard_text(self, notice: Notice) -> None:
        """Discard the text of an answer that does not fit the requested format; the model writes it again."""
        self._held.clear()
        if self._streams and self._has_sent_text:
            raise RunFailed(
                FORMAT_MISMATCH,
                f"The answer so far does not fit the requested format: {notice.message}. The model is writing it "
                f"again: read the run, send the request again with its Idempotency-Key, or stream with "
                f"x-khala-stream: checked.",
            )
        if not self._new_step:
            self._step_texts, self._new_step = [], True

    def _append_text(self, text: str) -> str:
        """Return the text as the delta contains it: the text of a further step begins a paragraph."""
        if not self._new_step:
            self._step_texts.append(text)
            return text
        self._has_earlier_text = self._has_earlier_text or bool(self._step_texts)
        self._step_texts, self._new_step, self._logprobs = [text], False, []
        return STEP_SEPARATOR + text if self._has_earlier_text else text

    async def _add_call(self, part: ToolCall, load: LoadArguments) -> JsonObject:
        if part.args is None and part.args_blob is not None:
            args = await load(part.args_blob)
        else:
            args = msgspec.json.encode(part.args or {}).decode()
        call = {"id": part.tool_call_id, "type": "function", "function": {"name": part.tool, "arguments": args}}
        self.calls.append(call)
        return {"tool_calls": [{"index": len(self.calls) - 1, **call}]}


def _logprob(token: TokenLogprob) -> JsonObject:
    top = [{"token": one.token, "logprob": one.logprob, "bytes": list(one.token.encode())} for one in token.top]
    encoded = list(token.token.encode() if token.bytes is None else token.bytes)
    return {"token": token.token, "logprob": token.logprob, "bytes": encoded, "top_logprobs": top}


def _logprobs(tokens: list[JsonObject]) -> JsonObject:
    return {"content": tokens, "refusal": None}


def join(builders: Sequence[ChatCompletionBuilder]) -> JsonObject:
    """Return the completion with the choices of all builders. Raises `RunFailed` if a run has failed."""
    completions = [builder.completion() for builder in builders]
    choices = [choice for completion in completions for choice in completion["choices"]]
    return {**completions[0], "choices": choices, "usage": total_usage(builders)}


def total_usage(builders: Sequence[ChatCompletionBuilder]) -> JsonObject:
    """Return the tokens that all runs used."""
    total = builders[0].usage
    for builder in builders[1:]:
        total = _sum(total, builder.usage)
    return total


def _sum(one: JsonObject, other: JsonObject) -> JsonObject:
    return {
        name: _sum(count, other[name]) if isinstance(count, dict) else count + other[name]
        for name, count in one.items()
    }
