"""A real provider's model behind our port: pydantic-ai does the calling, here its words become ours."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from itertools import groupby

import httpx2
import pydantic_ai.models
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    UserPromptPart,
)
from pydantic_ai.settings import ModelSettings

from app.domain.parts import Usage
from app.models import failures, responses, tokens
from app.models.catalog import ModelRef
from app.models.port import Completed, Event, Prompt, Reasoning, Text, Turn

GO_ON = (
    "A technical fault cut off your last message. Go on from exactly where it ends, in the midst of a word if need be. "
    "Repeat nothing, and don't mention the interruption."
)
"""Asked after what was said before: not every provider lets a model go on with its own last message."""


class ProviderModel:
    """One model of a real provider."""

    def __init__(self, model: pydantic_ai.models.Model, ref: ModelRef) -> None:
        self.name = ref.name
        self.provider: str = ref.provider
        self._model = model

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Event]]:
        """Call the model once. See `port.Model.stream`."""
        limit = ModelSettings(max_tokens=prompt.max_output_tokens) if prompt.max_output_tokens else None
        async with AsyncExitStack() as stack:
            try:
                with responses.noted() as opened:
                    called = model_request_stream(self._model, list(_messages(prompt)), model_settings=limit)
                    response = await stack.enter_async_context(called)
            except Exception as error:  # a border: the failure table names what it knows and keeps the rest as cause
                raise failures.of(error, self.provider, midstream=False) from error
            events = await stack.enter_async_context(aclosing(self._events(response, prompt, opened)))
            stack.push_async_callback(_close, opened)
            yield events

    async def _events(
        self, response: pydantic_ai.models.StreamedResponse, prompt: Prompt, opened: list[httpx2.Response]
    ) -> AsyncGenerator[Event]:
        heard: list[str] = []
        try:
            async for event in response:
                if (said := _said(event)) is not None:
                    heard.append(said.text)
                    yield said
        except Exception as error:  # as above: whatever a broken stream makes of the libraries, it ends as ModelFailed
            raise failures.of(error, self.provider, midstream=bool(heard)) from error
        yield self._completed(response, prompt, heard, whole=responses.done(opened))

    def _completed(
        self, response: pydantic_ai.models.StreamedResponse, prompt: Prompt, heard: list[str], *, whole: bool
    ) -> Completed:
        details = response.provider_details or {}
        given = details.get("finish_reason")
        reason = response.finish_reason or ("stop" if given else None)
        if self.provider == "openai" and not given and not whole:
            reason = None  # the library takes a stream that just ends for an answer
        if reason not in ("stop", "length", "tool_call"):
            raise failures.unfinished(reason, self.provider, midstream=bool(heard))
        used = response.usage
        counted = bool(used.input_tokens or used.output_tokens)
        usage = (
            Usage(input_tokens=used.input_tokens, output_tokens=used.output_tokens)
            if counted
            else tokens.estimate_usage(prompt, "".join(heard))
        )
        return Completed(usage=usage, finish_reason="length" if reason == "length" else "stop", estimated=not counted)


async def _close(opened: list[httpx2.Response]) -> None:
    for response in opened:
        await response.aclose()


def _said(event: ModelResponseStreamEvent) -> Text | Reasoning | None:
    """What an event adds to the answer. Once per token: keep it thin."""
    if isinstance(event, PartDeltaEvent):
        delta = event.delta
        if isinstance(delta, TextPartDelta):
            return Text(delta.content_delta) if delta.content_delta else None
        return Reasoning(delta.content_delta) if isinstance(delta, ThinkingPartDelta) and delta.content_delta else None
    if isinstance(event, PartStartEvent):
        part = event.part
        if isinstance(part, TextPart):
            return Text(part.content) if part.content else None
        return Reasoning(part.content) if isinstance(part, ThinkingPart) and part.content else None
    return None


def _messages(prompt: Prompt) -> Iterator[ModelMessage]:
    """The conversation in the library's terms. Runs of one voice become one message: some providers insist on turns.

    Providers without system messages amid a conversation get them joined to the instructions.
    """
    opening = (Turn(role="system", text=prompt.system),) if prompt.system else ()
    ending = (Turn(role="assistant", text=prompt.said), Turn(role="user", text=GO_ON)) if prompt.said.strip() else ()
    for assistant, turns in groupby((*opening, *prompt.turns, *ending), key=lambda turn: turn.role == "assistant"):
        if assistant:
            yield ModelResponse(parts=[TextPart(turn.text) for turn in turns])
        else:
            yield ModelRequest(parts=[_request_part(turn) for turn in turns])


def _request_part(turn: Turn) -> ModelRequestPart:
    return SystemPromptPart(turn.text) if turn.role == "system" else UserPromptPart(turn.text)
