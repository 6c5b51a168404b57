"""The agents that a request names for a plan: the caller must have them, and their models must be offered."""

from collections.abc import Mapping

from khala.api.agents import catalog
from khala.api.context import Context
from khala.domain import agents
from khala.domain.access import Caller
from khala.domain.errors import InvalidInput
from khala.domain.plans import named_agents
from khala.domain.routing import DEFAULT_AGENT


async def check_agents(context: Context, caller: Caller, named: Mapping[str, str]) -> None:
    """Raise `InvalidInput` for an agent that the caller does not have, or whose models are not offered.

    `named` has the names by their paths in the request.
    """
    if all(name == DEFAULT_AGENT for name in named.values()):
        return
    known = {agent.name: agent for agent in await catalog.list_agents(context, caller)}
    named_agents.check_agents(named, known)
    for path, name in named.items():
        models = agents.models_of(known[name]) if name in known else ()
        if not all(context.models.is_allowed(model) for model in models if model is not None):
            raise InvalidInput("A model of this agent is not offered by this server.", path=path)
