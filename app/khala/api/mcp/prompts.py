"""The prompts that a caller is offered over MCP: the instructions of the agents that they may use."""

import mcp_types as types

from khala.api.agents import catalog
from khala.api.context import Context
from khala.domain.access import Caller
from khala.domain.agents import Agent
from khala.domain.errors import NotFound
from khala.store.agents.agents import StoredAgent
from khala.tools.mcp import ToolGroup

AGENTS_GROUP = "agents"
"""The only group that offers the agents."""
TASK = "task"
MAX_TASK_CHARACTERS = 100_000


class McpPrompts:
    """The prompts that one request is offered. An agent without instructions is none."""

    def __init__(self, context: Context, caller: Caller, group: ToolGroup | None) -> None:
        self._context = context
        self._caller = caller
        self._is_offered = group is None or group.name == AGENTS_GROUP

    async def list(self) -> list[types.Prompt]:
        """List the agents by name."""
        if not self._is_offered:
            return []
        agents = await catalog.list_agents(self._context, self._caller)
        return [_prompt(agent) for agent in agents if agent.instructions]

    async def get(self, name: str, arguments: dict[str, str]) -> types.GetPromptResult:
        """The agent's instructions, and the task if there is one, as messages. Raises `NotFound`."""
        found = await catalog.find_agent(self._context, self._caller, name) if self._is_offered else None
        agent = found.agent if isinstance(found, StoredAgent) else found
        if agent is None or not agent.instructions:
            raise NotFound("There is no such prompt.")
        task = arguments.get(TASK, "")[:MAX_TASK_CHARACTERS]
        return types.GetPromptResult(
            description=agent.description or agent.title,
            messages=[
                types.PromptMessage(role="user", content=types.TextContent(text=text))
                for text in (agent.instructions, task)
                if text
            ],
        )


def _prompt(agent: Agent) -> types.Prompt:
    return types.Prompt(
        name=agent.name,
        title=agent.title,
        description=agent.description,
        arguments=[types.PromptArgument(name=TASK, description="What the agent is asked to do.", required=False)],
    )
