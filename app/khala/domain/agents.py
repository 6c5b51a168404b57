"""Agents: instructions, tools, models and limits for runs, under a name. Pure."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from msgspec import Meta

from khala.domain.chat import (
    MAX_INSTRUCTIONS_CHARACTERS,
    MAX_TOOL_PATTERNS,
    RunBudget,
    RunOptions,
    StoredRunOptions,
    WireStruct,
)
from khala.domain.parts import Route
from khala.domain.program_level import REMOTE_LEVEL

AgentVisibility: TypeAlias = Literal["private", "link", "public"]
"""Who may use an agent: its owner, also those who have its link, or everybody. A guest must have its tools."""
AgentExecutor: TypeAlias = Literal["server", "remote"]
"""What executes the runs of an agent: the server's executors, or remote workers by the executor protocol."""
LINK_MARK = "~"
"""The first character of a link to a shared agent, which no name has."""

COMMAND_PREFIX = "command:"
"""The beginning of the name of a command agent, which the operator's configuration defines."""
APP_PREFIX = "app:"
"""The beginning of the name of an agent that is a Python function of the operator's application."""
AUTO = "auto"
"""The name with which a client leaves the choice of the agent to the server."""
RESERVED_NAMES = frozenset({AUTO, "default"})
MAX_TITLE_CHARACTERS = 100
MAX_DESCRIPTION_CHARACTERS = 1_000
MAX_MODEL_CHARACTERS = 200
MAX_PATTERN_CHARACTERS = 200
MAX_FALLBACKS = 8
MAX_EXAMPLES = 20
MAX_EXAMPLE_CHARACTERS = 500
MAX_AGENTS = 100
"""Agents of one account."""
MAX_KEPT_VERSIONS = 1_000
"""Versions of one account that are kept, beside those that are current or that an active run uses."""


AgentName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,62}$(?!\n)")]  # Not before a final newline.
AgentTitle = Annotated[str, Meta(min_length=1, max_length=MAX_TITLE_CHARACTERS)]
AgentDescription = Annotated[str, Meta(max_length=MAX_DESCRIPTION_CHARACTERS)]
AgentInstructions = Annotated[str, Meta(max_length=MAX_INSTRUCTIONS_CHARACTERS)]
ToolPattern = Annotated[str, Meta(min_length=1, max_length=MAX_PATTERN_CHARACTERS)]
ToolPatterns = Annotated[Sequence[ToolPattern], Meta(max_length=MAX_TOOL_PATTERNS)]
ModelName = Annotated[str, Meta(min_length=1, max_length=MAX_MODEL_CHARACTERS)]
FallbackModels = Annotated[Sequence[ModelName], Meta(max_length=MAX_FALLBACKS)]
AgentExample = Annotated[str, Meta(min_length=1, max_length=MAX_EXAMPLE_CHARACTERS)]
AgentExamples = Annotated[Sequence[AgentExample], Meta(max_length=MAX_EXAMPLES)]


class AgentDefinition(WireStruct, frozen=True, kw_only=True):
    """The definition of an agent.

    `tools` are patterns of the tools that its runs are offered. Its runs call `model`, by default the server's, then
    `fallbacks`, then the server's models. `examples` are requests for which the agent is meant. If `executor` is
    `remote`, only remote workers execute its runs: the server calls no model and no tool.
    """

    title: AgentTitle
    description: AgentDescription
    instructions: AgentInstructions
    tools: ToolPatterns
    model: ModelName | None = None
    fallbacks: FallbackModels = ()
    examples: AgentExamples
    budget: RunBudget | None = None
    executor: AgentExecutor = "server"


class Agent(AgentDefinition, frozen=True, kw_only=True):
    """The current version of an agent. An agent without an owner is built in."""

    name: str
    version: int
    owner: UUID | None = None
    visibility: AgentVisibility


def choose(options: RunOptions, agent: Agent, agent_id: UUID | None, route: Route | None = None) -> StoredRunOptions:
    """The options to store for a run of this agent, with the lower limit of each measure of both budgets.

    `route` is the decision, if the server chose the agent.
    """
    # The name, and not the link with which it was requested, which is a secret.
    fields = _fields(options) | {"agent": agent.name, "budget": lower_budget(options.budget, agent.budget)}
    is_remote = agent.executor == "remote"
    return StoredRunOptions(
        **fields,
        agent_version=agent.version,
        agent_id=agent_id,
        route=route,
        remote_owner=agent.owner if is_remote else None,
        needs=REMOTE_LEVEL if is_remote else 0,
    )


def choose_default(options: RunOptions, route: Route) -> StoredRunOptions:
    """The options to store for a run of the default agent, because of this decision."""
    return StoredRunOptions(**_fields(options), route=route)


def _fields(options: RunOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in RunOptions.__struct_fields__}


def is_link(name: str) -> bool:
    """Whether this is the link of a shared agent, and not a name."""
    return name.startswith(LINK_MARK)


def lower_budget(one: RunBudget | None, other: RunBudget | None) -> RunBudget | None:
    """The lower limit of each measure."""
    if one is None or other is None:
        return one or other
    limits: dict[str, Any] = {}
    for measure in RunBudget.__struct_fields__:
        given = [limit for limit in (getattr(one, measure), getattr(other, measure)) if limit is not None]
        limits[measure] = min(given, default=None)
    return RunBudget(**limits)


def apply(agent: AgentDefinition, options: StoredRunOptions) -> StoredRunOptions:
    """The options with the agent's instructions before the run's own."""
    instructions = "\n\n".join(filter(None, (agent.instructions, options.instructions)))
    return msgspec.structs.replace(options, instructions=instructions)


def models_of(agent: AgentDefinition | None) -> list[str | None]:
    """The models to call, in order. None stands for the server's default model."""
    return [None] if agent is None else [agent.model, *agent.fallbacks]
