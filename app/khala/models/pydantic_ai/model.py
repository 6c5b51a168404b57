"""The language model port for Anthropic and Google, by pydantic-ai: converts its events and errors."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import httpx2
import pydantic_ai.models
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import (
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
)

from khala.models import call_result, failures, tool_arguments
from khala.models.model_names import ModelRef
from khala.models.port import Completed, HoldText, ModelEvent, Prompt, ReasoningChunk, TextChunk, ToolUse
from khala.models.pydantic_ai import failures as library_failures
from khala.models.pydantic_ai import http_responses, prompt_messages


class ProviderModel:
    """One model of Anthropic or Google."""

    reads_tools = True

    def __init__(self, model: pydantic_ai.models.Model, ref: ModelRef) -> None:
        self.name = ref.name
        self.provider: str = ref.provider
        self._model = model

    @asynccontextmanager
    async def stream(self, prompt: Prompt, hold: HoldText | None = None) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """Call the model once. See `port.LanguageModel.stream`."""
        async with AsyncExitStack() as stack:
            try:
                with http_responses.recorded() as responses:
                    request = model_request_stream(
                        self._model,
                        list(prompt_messages.messages(prompt)),
                        model_settings=prompt_messages.model_settings(prompt),
                        model_request_parameters=prompt_messages.parameters(prompt),
                    )
                    response = await stack.enter_async_context(request)
            except Exception as error:  # any other error of the libraries becomes the cause of a ModelFailed
                abilities = failures.required_abilities(prompt)
                raise library_failures.from_exception(
                    error, self.provider, midstream=False, abilities=abilities
                ) from error
            events = await stack.enter_async_context(aclosing(self._events(response, prompt)))
            stack.push_async_callback(_close, responses)
            yield events

    async def _events(
        self, response: pydantic_ai.models.StreamedResponse, prompt: Prompt
    ) -> AsyncGenerator[ModelEvent]:
        texts: list[str] = []
        try:
            async for event in response:
                if (chunk := _chunk(event)) is not None:
                    texts.append(chunk.text)
                    yield chunk
        except Exception as error:  # as above
            raise library_failures.from_exception(error, self.provider, midstream=bool(texts)) from error
        yield self._completed(response, prompt, "".join(texts))

    def _completed(self, response: pydantic_ai.models.StreamedResponse, prompt: Prompt, output: str) -> Completed:
        provider_reason = (response.provider_details or {}).get("finish_reason")
        return call_result.build_completed(
            prompt,
            output,
            provider=self.provider,
            finish_reason=response.finish_reason or ("stop" if provider_reason else None),
            uses=tuple(_uses(response)),
            token_counts=(response.usage.input_tokens, response.usage.output_tokens),
        )


def _uses(response: pydantic_ai.models.StreamedResponse) -> Iterator[ToolUse]:
    """The tool calls, with ids that are unique in this answer."""
    seen: set[str] = set()
    for index, part in enumerate(response.get().parts):
        if isinstance(part, ToolCallPart):
            args, problem = tool_arguments.decode_any(part.args)
            use_id = part.tool_call_id if part.tool_call_id not in ("", *seen) else f"{part.tool_call_id}-{index}"
            seen.add(use_id)
            yield ToolUse(id=use_id, name=part.tool_name, args=args, problem=problem)


async def _close(responses: list[httpx2.Response]) -> None:
    for response in responses:
        await response.aclose()


def _chunk(event: ModelResponseStreamEvent) -> TextChunk | ReasoningChunk | None:
    """The text that an event adds to the answer. This runs once per token."""
    if isinstance(event, PartDeltaEvent):
        delta = event.delta
        if isinstance(delta, TextPartDelta):
            return TextChunk(delta.content_delta) if delta.content_delta else None
        return (
            ReasoningChunk(delta.content_delta)
            if isinstance(delta, ThinkingPartDelta) and delta.content_delta
            else None
        )
    if isinstance(event, PartStartEvent):
        part = event.part
        if isinstance(part, TextPart):
            return TextChunk(part.content) if part.content else None
        return ReasoningChunk(part.content) if isinstance(part, ThinkingPart) and part.content else None
    return None
