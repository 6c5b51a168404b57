"""Agents of the OpenAI Agents SDK as agents of Khala. It needs Khala's extra `openai-agents`."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

try:
    from agents import Agent, AgentsException, RunConfig, Runner, TResponseInputItem
    from agents.result import RunResultStreaming
except ImportError as error:  # pragma: no cover
    raise ImportError("This module needs the OpenAI Agents SDK: pip install 'khala-server[openai-agents]'") from error

from khala.sdk.adapters.openai_agents_clones import AgentClones
from khala.sdk.adapters.openai_agents_models import RunModels
from khala.sdk.adapters.surface import (
    ReplyWriter,
    RunSurface,
    as_output,
    failure_of,
    model_failure,
    past_replies,
    store_output,
    stored_output,
)
from khala.sdk.adapters.tool_calls import ToolCalls, ToolRequest
from khala.sdk.agent import AgentRunContext, AppAgent
from khala.sdk.agent import agent as khala_agent

MAX_INTERRUPTIONS = 1_000
"""Times that one run may wait for people."""
DEFAULT_MAX_TURNS = 30


def openai_agent(
    name: str,
    agent: Agent[Any],
    *,
    make_context: Callable[[AgentRunContext], Any] | None = None,
    run_config: RunConfig | None = None,
    max_turns: int = DEFAULT_MAX_TURNS,
    report_usage: bool = True,
    **options: Any,
) -> AppAgent:
    """The agent `app:NAME`, which this agent of the OpenAI Agents SDK answers: see `answer`.

    `make_context` makes the context of a run. `options` are those of `khala.sdk.agent`. Raises `TypeError` and
    `ValueError` for invalid options.
    """

    async def run(surface: AgentRunContext) -> None:
        await answer(
            surface,
            agent,
            context=None if make_context is None else make_context(surface),
            run_config=run_config,
            max_turns=max_turns,
            report_usage=report_usage,
        )

    run.__doc__ = f"Answer with {agent.name}."
    return khala_agent(name, replay=False, **options)(run)


async def answer(
    surface: RunSurface,
    agent: Agent[Any],
    *,
    context: Any = None,
    run_config: RunConfig | None = None,
    max_turns: int = DEFAULT_MAX_TURNS,
    report_usage: bool = True,
) -> Any:
    """Answer the run with this agent, and return its final output. One that is no text is stored as a call.

    Without a `run_config`, nothing is traced. Without `report_usage`, nothing counts the model calls: choose that if
    they go to Khala, which counts them already. The agent of the run must have `replay=False`. Raises the `error_type`
    of the run.
    """
    blocks = await surface.read_blocks()
    calls = ToolCalls(surface, blocks, lambda _: None)
    clones = AgentClones(calls)
    clone = clones.of(agent)
    replies, unfinished = past_replies(blocks, ends_reply=lambda call: call.name in clones.handoff_names)
    writer = ReplyWriter(surface, unfinished)
    stored = stored_output(replies)
    if stored is not None:
        return await store_output(surface, writer, stored)
    models = RunModels(surface, calls, writer, replies, report_usage=report_usage)
    clones.use_models(models.recorded)
    config = run_config or RunConfig(tracing_disabled=True)
    model = config.model if config.model is None or isinstance(config.model, str) else models.recorded(config.model)
    config = replace(config, model=model, model_provider=models.provider(config.model_provider))
    options = {"context": context, "run_config": config, "max_turns": max_turns}
    try:
        output = await _run(surface, calls, clone, options)
    except AgentsException as error:
        raise surface.error_type(failure_of(error)) from error
    except Exception as error:
        failure = model_failure(error, surface.error_type)
        if failure is error:
            raise
        raise failure from error
    finally:
        await calls.aclose()
    return output if output is None or isinstance(output, str) else await store_output(surface, writer, output)


async def _run(surface: RunSurface, calls: ToolCalls, agent: Agent[Any], options: dict[str, Any]) -> Any:
    """Run the agent to its end. Each interruption waits for people. Returns the final output."""
    following: Any = _items(surface)
    for _ in range(MAX_INTERRUPTIONS):
        result = Runner.run_streamed(agent, following, **options)
        await _finished(result)
        if not result.interruptions:
            return result.final_output if isinstance(result.final_output, str) else as_output(result.final_output)
        following = result.to_state()
        items = result.interruptions
        requests = [ToolRequest(item.call_id or "", item.name or "tool", item.arguments or "") for item in items]
        for item, decision in zip(items, await calls.decide(requests), strict=True):
            if decision.denied is None:
                following.approve(item)
            else:
                following.reject(item, rejection_message=decision.denied)
    raise surface.error_type(f"An agent can wait for people at most {MAX_INTERRUPTIONS:,} times.")


async def _finished(result: RunResultStreaming) -> None:
    """Wait for the end of the run of the library. Its models write their text themselves."""
    try:
        async for _ in result.stream_events():
            pass
    finally:
        task = result.run_loop_task
        if task is not None and not task.done():
            result.cancel()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _items(surface: RunSurface) -> list[TResponseInputItem]:
    """The conversation in the library's types."""
    items: list[TResponseInputItem] = []
    for turn in surface.history:
        match turn.role:
            case "assistant":
                items.append({"role": "assistant", "content": turn.text})
            case "system":
                items.append({"role": "system", "content": turn.text})
            case _:
                items.append({"role": "user", "content": turn.text})
    return items
