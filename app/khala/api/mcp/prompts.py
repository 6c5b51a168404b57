"""The prompts that a caller is offered over MCP: the application's, and the instructions of agents."""

import mcp_types as types

from khala.api.agents import catalog
from khala.api.context import Context
from khala.api.mcp.app_contents import McpAppContents, describe_prompt
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
    """The prompts that one request is offered. An agent without instructions is none.

    A prompt of the application hides the agent of the same name.
    """

    def __init__(self, context: Context, caller: Caller, group: ToolGroup | None, app: McpAppContents) -> None:
        self._context = context
        self._caller = caller
        self._app = app
        self._has_agents = group is None or group.name == AGENTS_GROUP

    async def list(self) -> list[types.Prompt]:
        """List the prompts by name."""
        agents = await catalog.list_agents(self._context, self._caller) if self._has_agents else []
        by_name = {agent.name: _prompt(agent) for agent in agents if agent.instructions}
        by_name |= {name: describe_prompt(prompt) for name, prompt in (await self._app.prompts()).items()}
        return [prompt for _, prompt in sorted(by_name.items())]

    async def get(self, name: str, arguments: dict[str, str]) -> types.GetPromptResult:
        """The prompt's messages; of an agent, the instructions, and the task if there is one. Raises `KhalaError`."""
        prompt = (await self._app.prompts()).get(name)
        if prompt is not None:
            return await self._app.get_prompt(prompt, arguments)
        found = await self._find_agent(name)
        task = arguments.get(TASK, "")[:MAX_TASK_CHARACTERS]
        return types.GetPromptResult(
            description=found.description or found.title,
            messages=[
                types.PromptMessage(role="user", content=types.TextContent(text=text))
                for text in (found.instructions, task)
                if text
            ],
        )

    async def choices(self, name: str, argument: str) -> tuple[str, ...]:
        """The values that the argument may have; none if it may have any. Raises `NotFound`."""
        prompt = (await self._app.prompts()).get(name)
        if prompt is None:
            await self._find_agent(name)
            return ()
        return prompt.function.choices.get(argument, ())

    async def _find_agent(self, name: str) -> Agent:
        found = await catalog.find_agent(self._context, self._caller, name) if self._has_agents else None
        agent = found.agent if isinstance(found, StoredAgent) else found
        if agent is None or not agent.instructions:
            raise NotFound("There is no such prompt.")
        return agent


def _prompt(agent: Agent) -> types.Prompt:
    return types.Prompt(
        name=agent.name,
        title=agent.title,
        description=agent.description,
        arguments=[types.PromptArgument(name=TASK, description="What the agent is asked to do.", required=False)],
    )
