"""Models of the OpenAI Agents SDK in a run: what they write is its answer, and past replies are given again."""

import json
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

from agents import Model, ModelProvider, ModelResponse, Usage
from agents.items import TResponseStreamEvent
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputItem,
    ResponseOutputMessage,
    ResponseOutputText,
)

from khala.sdk.adapters.surface import PastReply, ReplyWriter, RunSurface
from khala.sdk.adapters.tool_calls import ToolCalls

PROVIDER = "openai"


class RunModels:
    """The models of one run. `replies` are those before the run was interrupted, which the models give first."""

    def __init__(
        self,
        surface: RunSurface,
        calls: ToolCalls,
        writer: ReplyWriter,
        replies: Sequence[PastReply],
        *,
        report_usage: bool,
    ) -> None:
        self.surface = surface
        self.calls = calls
        self.writer = writer
        self.replies = deque(replies)
        self.report_usage = report_usage

    def recorded(self, model: Model) -> Model:
        """The model as one of this run."""
        return _RunModel(self, model)

    def provider(self, provider: ModelProvider) -> ModelProvider:
        """The provider, whose models are those of this run."""
        return _RunProvider(self, provider)

    def report(self, model: str | None, usage: Usage | Any) -> None:
        """Report a call, if its usage is known."""
        if self.report_usage and usage is not None:
            self.surface.usage(
                provider=PROVIDER, model=model, input_tokens=usage.input_tokens, output_tokens=usage.output_tokens
            )


class _RunProvider(ModelProvider):
    def __init__(self, models: RunModels, provider: ModelProvider) -> None:
        self._models = models
        self._provider = provider

    def get_model(self, model_name: str | None) -> Model:
        return self._models.recorded(self._provider.get_model(model_name))

    async def aclose(self) -> None:
        await self._provider.aclose()


class _RunModel(Model):
    def __init__(self, models: RunModels, model: Model) -> None:
        self._models = models
        self._model = model

    async def close(self) -> None:
        await self._model.close()

    async def get_response(self, *args: Any, **named: Any) -> ModelResponse:
        models = self._models
        models.calls.begin_reply()
        if models.replies:
            return ModelResponse(output=_output(models.replies.popleft()), usage=Usage(), response_id=None)
        response = await self._model.get_response(*args, **named)
        models.report(getattr(self._model, "model", None), response.usage)
        return response

    async def stream_response(self, *args: Any, **named: Any) -> AsyncIterator[TResponseStreamEvent]:
        models = self._models
        models.calls.begin_reply()
        if models.replies:
            yield _completed(_output(models.replies.popleft()))
            return
        async for event in self._model.stream_response(*args, **named):
            if event.type == "response.output_text.delta":
                await models.writer.write(event.delta)
            elif isinstance(event, ResponseCompletedEvent):
                models.writer.end_reply()
                models.report(str(event.response.model), event.response.usage)
            yield event


def _output(reply: PastReply) -> list[ResponseOutputItem]:
    """A past reply in the library's types."""
    text = ResponseOutputText(text=reply.text, type="output_text", annotations=[])
    message = ResponseOutputMessage(id="past", content=[text], role="assistant", status="completed", type="message")
    calls = [
        ResponseFunctionToolCall(arguments=json.dumps(call.args), call_id=call.id, name=call.name, type="function_call")
        for call in reply.calls
    ]
    return [message, *calls] if reply.text else [*calls]


def _completed(output: list[ResponseOutputItem]) -> ResponseCompletedEvent:
    response = Response(
        id="past",
        created_at=0,
        model="past",
        object="response",
        output=output,
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
    )
    return ResponseCompletedEvent(response=response, sequence_number=0, type="response.completed")
