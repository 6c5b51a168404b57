"""Request bodies of agents."""

import msgspec

from khala.api.types import ApiStruct
from khala.domain.agents import (
    AgentDescription,
    AgentExamples,
    AgentInstructions,
    AgentName,
    AgentTitle,
    FallbackModels,
    ModelName,
    ToolPatterns,
)
from khala.domain.chat import RunBudget


class NewAgent(ApiStruct, frozen=True, kw_only=True):
    """An agent to create. Without `tools`, its runs are offered all. `auto` and `default` are reserved names."""

    name: AgentName
    title: AgentTitle
    description: AgentDescription = ""
    instructions: AgentInstructions = ""
    tools: ToolPatterns = ("*",)
    model: ModelName | None = None
    fallbacks: FallbackModels = ()
    examples: AgentExamples = ()
    budget: RunBudget | None = None


class AgentLink(ApiStruct, frozen=True, kw_only=True):
    """The link that shares an agent. Use it as `agent` in `RunOptions`, or to read the agent."""

    link: str


class AgentChanges(ApiStruct, frozen=True, kw_only=True):
    """Changes of an agent. Fields that are absent stay as they are."""

    title: AgentTitle | msgspec.UnsetType = msgspec.UNSET
    description: AgentDescription | msgspec.UnsetType = msgspec.UNSET
    instructions: AgentInstructions | msgspec.UnsetType = msgspec.UNSET
    tools: ToolPatterns | msgspec.UnsetType = msgspec.UNSET
    model: ModelName | msgspec.UnsetType | None = msgspec.UNSET
    fallbacks: FallbackModels | msgspec.UnsetType = msgspec.UNSET
    examples: AgentExamples | msgspec.UnsetType = msgspec.UNSET
    budget: RunBudget | msgspec.UnsetType | None = msgspec.UNSET
