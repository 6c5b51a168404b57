"""Agents of Pydantic AI as agents of Khala. It needs Khala's extra `pydantic-ai`."""

from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

try:
    from pydantic_ai import Agent, ModelRetry, RunContext
    from pydantic_ai.capabilities import AbstractCapability, ReinjectSystemPrompt
    from pydantic_ai.exceptions import AgentRunError, ApprovalRequired, CallDeferred, ModelHTTPError, ToolRetryError
    from pydantic_ai.messages import (
        AgentStreamEvent,
        ModelMessage,
        ModelRequest,
        ModelResponse,
        PartDeltaEvent,
        PartStartEvent,
        SystemPromptPart,
        TextPart,
        TextPartDelta,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )
    from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDefinition, ToolDenied
except ImportError as error:  # pragma: no cover
    raise ImportError("This module needs Pydantic AI: pip install 'khala-server[pydantic-ai]'") from error

from khala.sdk.adapters.surface import (
    PastReply,
    ReplyWriter,
    RunSurface,
    as_output,
    failure_of,
    log_refused_call,
    past_replies,
    store_output,
    stored_output,
)
from khala.sdk.adapters.tool_calls import CallFailedError, ToolCalls, ToolRequest
from khala.sdk.agent import AgentRunContext, AppAgent
from khala.sdk.agent import agent as khala_agent


def pydantic_ai_agent(
    name: str,
    agent: Agent[Any, Any],
    *,
    deps: Callable[[AgentRunContext], Any] | None = None,
    report_usage: bool = True,
    **options: Any,
) -> AppAgent:
    """The agent `app:NAME`, which this agent of Pydantic AI answers.

    `deps` makes the dependencies of a run. `report_usage`: see `answer`. `options` are those of `khala.sdk.agent`.
    Raises `TypeError` and `ValueError` for invalid options.
    """

    async def run(context: AgentRunContext) -> None:
        await answer(context, agent, deps=None if deps is None else deps(context), report_usage=report_usage)

    run.__doc__ = f"Answer with {agent.name or name}."
    return khala_agent(name, replay=False, **options)(run)


async def answer(context: RunSurface, agent: Agent[Any, Any], *, deps: Any = None, report_usage: bool = True) -> Any:
    """Answer the run with this agent, and return its output. An output that is no text is stored as a call.

    `report_usage`: report model calls. Without, nothing counts them: choose that if the models are Khala's own, which
    count already. The agent of the run must have `replay=False`. Raises the `error_type` of the context.
    """
    blocks = await context.read_blocks()
    replies, unfinished = past_replies(blocks)
    capability = _Khala(
        context=context,
        calls=ToolCalls(context, blocks, _explain, defers=(ApprovalRequired, CallDeferred)),
        writer=ReplyWriter(context, unfinished),
        report_usage=report_usage,
    )
    stored = stored_output(replies)
    if stored is not None:
        return await store_output(context, capability.writer, stored)
    try:
        result = await agent.run(
            message_history=await _messages(context, replies),
            deps=deps,
            capabilities=[ReinjectSystemPrompt(), capability],
            event_stream_handler=capability.write_text,
        )
    except ModelHTTPError as error:
        log_refused_call(error)
        raise context.error_type(f"The model {error.model_name} failed with the status {error.status_code}.") from error
    except AgentRunError as error:
        raise context.error_type(failure_of(error)) from error
    finally:
        await capability.calls.aclose()
    if isinstance(result.output, DeferredToolRequests):
        names = ", ".join(call.tool_name for call in result.output.calls)
        raise context.error_type(f"Nothing here can execute the external tools {names}.")
    if isinstance(result.output, str):
        return result.output
    return await store_output(context, capability.writer, as_output(result.output))


@dataclass
class _Khala(AbstractCapability[Any]):
    """Connects one run of the library with a run of Khala."""

    context: RunSurface
    calls: ToolCalls
    writer: ReplyWriter
    report_usage: bool

    async def write_text(self, _: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
        async for event in events:
            match event:
                case (
                    PartStartEvent(part=TextPart(content=text))
                    | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
                ):
                    await self.writer.write(text)
                case _:
                    pass

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: Any, response: ModelResponse
    ) -> ModelResponse:
        self.writer.end_reply()
        self.calls.begin_reply()
        if self.report_usage:
            self.context.usage(
                provider=response.provider_name,
                model=response.model_name,
                input_tokens=response.usage.input_tokens,
                output_tokens=response.usage.output_tokens,
            )
        return response

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        async def execute(_: dict[str, Any]) -> Any:
            return await handler(args)  # Edited arguments have been validated in `args`.

        try:
            return await self.calls.execute(_request(call), execute)
        except CallFailedError as error:
            raise ModelRetry(str(error)) from error

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        if not requests.approvals:
            return None
        decisions = await self.calls.decide([_request(call) for call in requests.approvals])
        results = DeferredToolResults()
        for call, decision in zip(requests.approvals, decisions, strict=True):
            results.approvals[call.tool_call_id] = (
                ToolApproved(override_args=decision.args) if decision.denied is None else ToolDenied(decision.denied)
            )
        return results


def _request(call: ToolCallPart) -> ToolRequest:
    return ToolRequest(call.tool_call_id, call.tool_name, call.args_as_dict())


async def _messages(context: RunSurface, replies: Sequence[PastReply]) -> list[ModelMessage]:
    """The conversation, and the replies of this run so far. The calls of the last reply get their results again."""
    messages: list[ModelMessage] = []
    for turn in context.history:
        match turn.role:
            case "assistant":
                messages.append(ModelResponse(parts=[TextPart(turn.text)]))
            case "system":
                messages.append(ModelRequest(parts=[SystemPromptPart(turn.text)]))
            case _:
                messages.append(ModelRequest(parts=[UserPromptPart(turn.text)]))
    for reply in replies:
        if messages and isinstance(messages[-1], ModelResponse) and messages[-1].tool_calls:
            messages.append(ModelRequest(parts=[await _returned(context, call) for call in messages[-1].tool_calls]))
        calls = [ToolCallPart(call.name, call.args, tool_call_id=call.id) for call in reply.calls]
        messages.append(ModelResponse(parts=[*([TextPart(reply.text)] if reply.text else []), *calls]))
    return messages


async def _returned(context: RunSurface, call: ToolCallPart) -> ToolReturnPart:
    outcome = await context.tool_call(call.tool_call_id, call.tool_name, call.args_as_dict(), _lost)
    content = outcome.output if outcome.error is None else outcome.error
    return ToolReturnPart(call.tool_name, content, tool_call_id=call.tool_call_id)


def _lost(_: dict[str, Any]) -> Any:
    raise RuntimeError("The result was not stored before the run was interrupted.")


def _explain(error: Exception) -> str | None:
    if isinstance(error, ToolRetryError):
        return str(error.tool_retry.content)
    return str(error) if isinstance(error, ModelRetry) else None
