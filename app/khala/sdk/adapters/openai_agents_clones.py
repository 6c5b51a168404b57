"""Copies of the agents of a run, whose tools and handoffs are calls of the run."""

import copy
import json
from collections.abc import Callable
from typing import Any

from agents import Agent, FunctionTool, Handoff, Model, RunContextWrapper, Tool, handoff
from agents.tool_context import ToolContext

from khala.sdk.adapters.surface import as_object, call_name
from khala.sdk.adapters.tool_calls import CallFailedError, ToolCalls, ToolRequest


class AgentClones:
    """Copies agents, and the agents to which they hand over. The agents themselves stay as they are."""

    def __init__(self, calls: ToolCalls) -> None:
        self._calls = calls
        self._clones: dict[int, Agent[Any]] = {}
        self._recorded: Callable[[Model], Model] = lambda model: model
        self.handoff_names: set[str] = set()
        """The names of the calls that hand over to another agent."""

    def of(self, agent: Agent[Any]) -> Agent[Any]:
        """The copy of an agent."""
        if id(agent) in self._clones:
            return self._clones[id(agent)]
        clone = self._clones[id(agent)] = agent.clone(tools=[self._tool(tool) for tool in agent.tools], handoffs=[])
        clone.handoffs = [
            self._handoff(handoff(self.of(one)) if isinstance(one, Agent) else one) for one in agent.handoffs
        ]
        if isinstance(clone.model, Model):
            clone.model = self._recorded(clone.model)
        find_mcp_tools = clone.get_mcp_tools

        async def get_mcp_tools(context: RunContextWrapper[Any]) -> list[Tool]:
            return [self._tool(tool) for tool in await find_mcp_tools(context)]

        clone.get_mcp_tools = get_mcp_tools  # type: ignore[method-assign, assignment]  # of this copy alone
        return clone

    def use_models(self, recorded: Callable[[Model], Model]) -> None:
        """Have the copies call these models instead of their own ones."""
        self._recorded = recorded
        for clone in self._clones.values():
            if isinstance(clone.model, Model):
                clone.model = recorded(clone.model)

    def _tool(self, tool: Tool) -> Tool:
        if not isinstance(tool, FunctionTool):
            return tool
        invoke = tool.on_invoke_tool

        async def call(context: ToolContext[Any], arguments: str) -> Any:
            async def execute(args: dict[str, Any]) -> Any:
                edited = args != as_object(arguments)
                return await invoke(context, json.dumps(args) if edited else arguments)

            try:
                return await self._calls.execute(ToolRequest(context.tool_call_id, tool.name, arguments), execute)
            except CallFailedError as error:
                return str(error)

        clone = copy.copy(tool)
        clone.on_invoke_tool = call
        return clone

    def _handoff(self, original: Handoff[Any, Any]) -> Handoff[Any, Any]:
        invoke = original.on_invoke_handoff
        self.handoff_names.add(call_name(original.tool_name))

        async def hand_over(context: RunContextWrapper[Any], arguments: str) -> Any:
            target = await invoke(context, arguments)
            call_id = getattr(context, "tool_call_id", None) or original.tool_name

            async def execute(_: dict[str, Any]) -> Any:
                return {"assistant": target.name}

            await self._calls.execute(ToolRequest(call_id, original.tool_name, arguments), execute)
            return target if any(target is one for one in self._clones.values()) else self.of(target)

        clone = copy.copy(original)
        clone.on_invoke_handoff = hand_over
        return clone
