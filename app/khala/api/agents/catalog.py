"""The agents that a caller may use: their own, shared and built-in ones, commands and Python agents of the operator.

A guest must have an agent's tools.
"""

from uuid import UUID

import msgspec

from khala.api.context import Context
from khala.domain import agent_seeds, agents
from khala.domain.access import Caller
from khala.domain.agents import Agent
from khala.domain.chat import RunOptions
from khala.domain.errors import InvalidInput
from khala.domain.routing import DEFAULT_AGENT, RoutableAgent
from khala.memory.agent_router import BUILT_IN
from khala.store.agents import agent_links
from khala.store.agents import agents as agent_store
from khala.store.agents.agents import StoredAgent
from khala.tools.commands import find_command


async def list_agents(context: Context, caller: Caller) -> list[Agent]:
    """The agents by name. An own agent hides the built-in one of the same name."""
    by_name = {agent.name: agent for agent in agent_seeds.BUILT_IN if _has_tools(context, caller, agent)}
    if caller.user_id is not None:
        async with context.db.driver() as driver:
            by_name |= {agent.name: agent for agent in await agent_store.of_user(driver, caller.user_id)}
    commands = [one for one in context.tools.commands.values() if one.guests or caller.user_id is not None]
    by_name |= {command.agent.name: command.agent for command in commands}
    app_agents = [one for one in context.tools.app.agents.values() if one.guests or caller.user_id is not None]
    by_name |= {one.agent.name: one.agent for one in app_agents}
    return [agent for _, agent in sorted(by_name.items())]


async def find_agent(context: Context, caller: Caller, name: str) -> StoredAgent | Agent | None:
    """The caller's own agent of this name, or else the built-in one; or the agent that is shared by this link.

    None if there is none, or if the caller is a guest and may not use its tools.
    """
    if agents.is_link(name):
        return await _find_shared(context, caller, name)
    if name.startswith(agents.COMMAND_PREFIX):
        command = find_command(context.tools.commands, name, guest=caller.user_id is None)
        return None if command is None else command.agent
    if name.startswith(agents.APP_PREFIX):
        app_agent = context.tools.app.find(name, guest=caller.user_id is None)
        return None if app_agent is None else app_agent.agent
    if caller.user_id is not None and "\0" not in name:
        async with context.db.driver() as driver:
            own = await agent_store.find(driver, caller.user_id, name)
        if own is not None:
            return own
    agent = agent_seeds.BY_NAME.get(name)
    return agent if agent is not None and _has_tools(context, caller, agent) else None


async def _find_shared(context: Context, caller: Caller, link: str) -> StoredAgent | None:
    async with context.db.driver() as driver:
        found = await agent_links.find(driver, link)
    return found if found is not None and _has_tools(context, caller, found.agent) else None


async def choose_agent(context: Context, caller: Caller, options: RunOptions, task: str, payer_id: UUID) -> RunOptions:
    """The options to store for a run whose agent the server chooses by this task, and the decision.

    The vector of the task counts for the user or thread `payer_id`. The caller may send at its cost.
    """
    decision = await context.router.route(payer_id, task, await list_routable(context, caller, options.model))
    route = decision.part(agent_seeds.BY_NAME)
    found = None if decision.abstained else await find_agent(context, caller, decision.agent)
    if found is None:  # Also if it has just been deleted.
        return agents.choose_default(options, msgspec.structs.replace(route, agent=DEFAULT_AGENT))
    agent, agent_id = (found.agent, found.id) if isinstance(found, StoredAgent) else (found, None)
    return agents.choose(options, agent, agent_id, route)


async def list_routable(context: Context, caller: Caller, model: str | None) -> list[RoutableAgent]:
    """The agents to which a task of this caller may be routed, if its run requests this model.

    Without a requested model, all models of the agent have to be offered.
    """
    by_name = {one.name: one for one in BUILT_IN if _has_tools(context, caller, agent_seeds.BY_NAME[one.name])}
    if caller.user_id is not None:
        async with context.db.driver() as driver:
            by_name |= {one.name: one for one in await agent_store.routable(driver, caller.user_id)}
    return [one for one in by_name.values() if model is not None or all(map(context.models.is_allowed, one.models))]


async def resolve_agent(
    context: Context, caller: Caller, options: RunOptions, *, path: str = "options.agent"
) -> RunOptions:
    """The options to store, with the version of the agent that they name.

    Raises `InvalidInput` if the caller has no such agent, or if its models are not offered any more.
    """
    if options.agent is None:
        return options
    found = await find_agent(context, caller, options.agent)
    if found is None:
        raise InvalidInput("There is no such agent.", path=path)
    agent, agent_id = (found.agent, found.id) if isinstance(found, StoredAgent) else (found, None)
    models = [name for name in agents.models_of(agent) if name is not None]
    if options.model is None and not all(map(context.models.is_allowed, models)):
        raise InvalidInput("A model of this agent is not offered by this server.", path=path)
    return agents.choose(options, agent, agent_id)


def _has_tools(context: Context, caller: Caller, agent: Agent) -> bool:
    return caller.user_id is not None or context.tools.registry.offers_to_guests(agent.tools)
