"""Graphs of LangGraph as agents of Khala. It needs Khala's extra `langgraph`."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

try:
    from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage
    from langchain_core.runnables import RunnableConfig
    from langgraph.channels.delta import DeltaChannel
    from langgraph.errors import GraphRecursionError
    from langgraph.pregel import Pregel
    from langgraph.types import Command, Interrupt
except ImportError as error:  # pragma: no cover
    raise ImportError("This module needs LangGraph: pip install 'khala-server[langgraph]'") from error

from khala.sdk.adapters.langgraph_callbacks import RunCallbacks
from khala.sdk.adapters.langgraph_checkpoints import RunCheckpoints, is_checkpoint
from khala.sdk.adapters.langgraph_interrupts import decide
from khala.sdk.adapters.surface import ReplyWriter, RunSurface, failure_of, model_failure
from khala.sdk.agent import AgentRunContext, AppAgent
from khala.sdk.agent import agent as khala_agent

MAX_INTERRUPTS = 1_000
"""Times that one run may be interrupted and resumed."""


def langgraph_agent(
    name: str,
    graph: Pregel[Any, Any, Any, Any],
    *,
    make_input: Callable[[AgentRunContext], Any] | None = None,
    make_output: Callable[[Any], str] | None = None,
    text_nodes: Collection[str] | None = None,
    context: Any = None,
    config: RunnableConfig | None = None,
    report_usage: bool = True,
    **options: Any,
) -> AppAgent:
    """The agent `app:NAME`, which this compiled graph answers: see `answer`.

    `make_input` makes the input of the graph, by default the conversation as `messages`. `options` are those of
    `khala.sdk.agent`. Raises `TypeError` and `ValueError` for a graph or options that cannot be used.
    """
    _check(graph)

    async def run(run_context: AgentRunContext) -> None:
        await answer(
            run_context,
            graph,
            graph_input=None if make_input is None else make_input(run_context),
            make_output=make_output,
            text_nodes=text_nodes,
            context=context,
            config=config,
            report_usage=report_usage,
        )

    run.__doc__ = f"Answer with {graph.name}."
    return khala_agent(name, replay=False, **options)(run)


async def answer(
    surface: RunSurface,
    graph: Pregel[Any, Any, Any, Any],
    *,
    graph_input: Any = None,
    make_output: Callable[[Any], str] | None = None,
    text_nodes: Collection[str] | None = None,
    context: Any = None,
    config: RunnableConfig | None = None,
    report_usage: bool = True,
) -> Any:
    """Answer the run with this graph, and return its final state.

    What its models write becomes the answer, of all nodes or of `text_nodes`; then the text that `make_output` makes of
    the final state. `context` and `config` are passed to the graph. Without `report_usage`, nothing counts its model
    calls: choose that if they go to Khala, which counts them already.

    A graph without a checkpointer stores its state in the run after each super-step, and goes on after the last one. A
    graph with one keeps it, in the thread of the run's id. The agent of the run must have `replay=False`. Raises the
    `error_type` of the run.
    """
    async with _opened(surface, graph, config, report_usage=report_usage) as run:
        try:
            state = await run.execute(graph_input, context, text_nodes)
        except GraphRecursionError as error:
            raise surface.error_type(failure_of(error)) from error
        except Exception as error:
            failure = model_failure(error, surface.error_type)
            if failure is error:
                raise
            raise failure from error
        if make_output is not None:
            await run.writer.write(make_output(state))
        return state


class _GraphRun:
    """One run of a graph."""

    def __init__(self, surface: RunSurface, graph: Any, config: RunnableConfig, writer: ReplyWriter) -> None:
        self._surface = surface
        self._graph = graph
        self._config = config
        self.writer = writer
        self._message: str | None = None

    async def execute(self, graph_input: Any, context: Any, text_nodes: Collection[str] | None) -> Any:
        """Execute the graph to its end. Each interrupt waits for a person. Returns the final state."""
        snapshot = await self._graph.aget_state(self._config)
        following: Any = None if snapshot.created_at is not None else graph_input or {"messages": self._messages()}
        rounds = Counter[int]()
        for _ in range(MAX_INTERRUPTS):
            await self._stream(following, context, text_nodes)
            snapshot = await self._graph.aget_state(self._config)
            if not snapshot.interrupts:
                return snapshot.values
            step = (snapshot.metadata or {}).get("step", 0)
            rounds[step] += 1
            following = Command(resume=await self._decide(snapshot.interrupts, f"interrupt:{step}:{rounds[step]}"))
        raise self._surface.error_type(f"A graph can be interrupted at most {MAX_INTERRUPTS:,} times.")

    async def _stream(self, following: Any, context: Any, text_nodes: Collection[str] | None) -> None:
        stream = self._graph.astream(
            following, self._config, context=context, stream_mode="messages", durability="sync", subgraphs=True
        )
        async for _, (message, metadata) in stream:
            if isinstance(message, AIMessage) and (text_nodes is None or metadata.get("langgraph_node") in text_nodes):
                await self._write(message)

    async def _write(self, message: AIMessage) -> None:
        if self._message not in (None, message.id):
            self.writer.end_reply()
        self._message = message.id
        await self.writer.write(str(message.text))
        if not isinstance(message, AIMessageChunk):
            self.writer.end_reply()

    async def _decide(self, interrupts: Sequence[Interrupt], key: str) -> dict[str, Any]:
        """The values with which the graph goes on, by the ids of its interrupts.

        The ids differ when a super-step is executed again. So the key of an interrupt is its place in the run.
        """
        decided = (decide(self._surface, f"{key}:{place}", one) for place, one in enumerate(interrupts))
        values = await asyncio.gather(*decided)
        return {interrupt.id: value for interrupt, value in zip(interrupts, values, strict=True)}

    def _messages(self) -> list[BaseMessage]:
        """The conversation in the library's types."""
        kinds: dict[str, type[BaseMessage]] = {"assistant": AIMessage, "system": SystemMessage}
        return [kinds.get(turn.role, HumanMessage)(turn.text) for turn in self._surface.history]


@asynccontextmanager
async def _opened(
    surface: RunSurface, graph: Any, config: RunnableConfig | None, *, report_usage: bool
) -> AsyncIterator[_GraphRun]:
    """The run of the graph, with the state that the run has stored."""
    blocks = await surface.read_blocks()
    tail = blocks[-1] if blocks and isinstance(blocks[-1], str) else ""
    config = {**(config or {})}
    thread = str(surface.run_id)
    config["configurable"] = {"thread_id": thread, **config.get("configurable", {})}
    if graph.checkpointer in (None, False):
        checkpoints = RunCheckpoints(surface, thread)
        await checkpoints.load([one for one in blocks if not isinstance(one, str) and is_checkpoint(one)])
        graph = graph.copy({"checkpointer": checkpoints})
    callbacks = RunCallbacks(surface, graph.checkpointer, report_usage=report_usage)
    config["callbacks"] = [*_handlers(config.get("callbacks")), callbacks]
    try:
        yield _GraphRun(surface, graph, config, ReplyWriter(surface, tail))
    finally:
        await callbacks.aclose()


def _handlers(callbacks: Any) -> list[Any]:
    return list(callbacks if isinstance(callbacks, list) else getattr(callbacks, "handlers", ()))


def _check(graph: Pregel[Any, Any, Any, Any]) -> None:
    if not isinstance(graph, Pregel):
        raise TypeError("An agent of LangGraph is a compiled graph: call `compile()`.")
    deltas = [name for name, channel in graph.channels.items() if isinstance(channel, DeltaChannel)]
    if deltas and graph.checkpointer in (None, False):
        raise ValueError(f"{', '.join(deltas)}: a graph with a `DeltaChannel` needs a checkpointer of its own.")
