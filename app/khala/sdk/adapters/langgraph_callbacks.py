"""Shows the tool calls of a graph as calls of the run, and reports the usage of its models."""

import asyncio
import contextlib
import json
import re
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langgraph.errors import GraphBubbleUp

from khala.sdk.adapters.langgraph_checkpoints import NODE_PREFIX, RunCheckpoints
from khala.sdk.adapters.surface import EndedCall, RunSurface, as_object, as_output, call_name


class _ShownCall:
    """A call that the library executes, while it is shown."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.begun: asyncio.Future[None] = loop.create_future()
        self.result: asyncio.Future[Any] = loop.create_future()
        self.task: asyncio.Future[EndedCall] | None = None

    async def carry_out(self, _: dict[str, Any]) -> Any:
        self.begun.set_result(None)
        return await self.result


class RunCallbacks(AsyncCallbackHandler):
    """The callbacks of one run. Nodes that are not async call them from other threads."""

    raise_error = True

    def __init__(self, surface: RunSurface, checkpointer: Any, *, report_usage: bool) -> None:
        self._surface = surface
        self._checkpoints = checkpointer if isinstance(checkpointer, RunCheckpoints) else None
        self._report_usage = report_usage
        self._loop = asyncio.get_running_loop()
        self._shown: dict[UUID, _ShownCall] = {}

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **more: Any) -> None:
        """Report the usage of a model call."""
        for generation in (one for batch in response.generations for one in batch[:1]):
            message = generation.message if isinstance(generation, ChatGeneration) else None
            if self._report_usage and isinstance(message, AIMessage) and message.usage_metadata is not None:
                await self._in_loop(self._report(message))

    async def on_tool_start(self, serialized: dict[str, Any], input_str: str, *, run_id: UUID, **more: Any) -> None:
        """Show that the tool begins. Returns when that is stored."""
        metadata = more.get("metadata") or {}
        # Without the ids of tasks, which differ when a super-step is executed again.
        nodes = re.sub(r":[^|]*", "", metadata.get("langgraph_checkpoint_ns", ""))
        step = 0 if self._checkpoints is None else self._checkpoints.step
        place = f"{step}:{nodes}:{metadata.get('langgraph_step')}"
        key = f"tool:{place}:{more.get('tool_call_id') or serialized['name']}"
        args = as_object(more["inputs"] if more.get("inputs") is not None else input_str)
        name = call_name(str(serialized["name"]))
        name = call_name(f"t_{name}") if name.startswith(NODE_PREFIX) else name
        await self._in_loop(self._begin(run_id, key, name, args))

    async def on_tool_end(self, output: Any, *, run_id: UUID, **more: Any) -> None:
        """Show the result of the tool."""
        content = _value(output.content) if isinstance(output, ToolMessage) else output
        error = isinstance(output, ToolMessage) and output.status == "error"
        await self._in_loop(self._end(run_id, as_output(content), str(content) if error else None))

    async def on_tool_error(self, error: BaseException, *, run_id: UUID, **more: Any) -> None:
        """Show that the tool has failed. One that waits for a person has not."""
        if isinstance(error, GraphBubbleUp):
            await self._in_loop(self._leave(run_id))
        else:
            await self._in_loop(self._end(run_id, None, f"The tool failed: {type(error).__name__}."))

    async def aclose(self) -> None:
        """Leave the calls that have not ended."""
        await asyncio.gather(*(self._leave(run_id) for run_id in list(self._shown)))

    async def _report(self, message: AIMessage) -> None:
        usage = message.usage_metadata
        assert usage is not None
        self._surface.usage(
            provider=message.response_metadata.get("model_provider"),
            model=message.response_metadata.get("model_name"),
            input_tokens=usage["input_tokens"],
            output_tokens=usage["output_tokens"],
        )

    async def _begin(self, run_id: UUID, key: str, name: str, args: dict[str, Any]) -> None:
        shown = self._shown[run_id] = _ShownCall()
        shown.task = asyncio.ensure_future(self._surface.tool_call(key, name, args, shown.carry_out))
        await asyncio.wait((shown.task, shown.begun), return_when=asyncio.FIRST_COMPLETED)
        if shown.task.done():
            shown.task.result()  # Raises the error for which nothing can be stored any more.

    async def _end(self, run_id: UUID, output: Any, error: str | None) -> None:
        shown = self._shown.pop(run_id, None)
        if shown is None or shown.task is None:
            return
        if error is None:
            shown.result.set_result(output)
        else:
            shown.result.set_exception(self._surface.error_type(error))
        await shown.task

    async def _leave(self, run_id: UUID) -> None:
        shown = self._shown.pop(run_id, None)
        if shown is not None and shown.task is not None:
            shown.task.cancel()
            await asyncio.gather(shown.task, return_exceptions=True)

    async def _in_loop(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work in the loop of the run."""
        if asyncio.get_running_loop() is self._loop:
            await work
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


def _value(content: Any) -> Any:
    """The content of a tool's message. An object is JSON in it."""
    if isinstance(content, str) and content[:1] in ("{", "["):
        with contextlib.suppress(ValueError):
            return json.loads(content)
    return content
