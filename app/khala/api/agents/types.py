"""Request and response bodies of agents."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from khala.api.types import ApiStruct
from khala.domain.agents import (
    AgentDescription,
    AgentExamples,
    AgentExecutor,
    AgentInstructions,
    AgentName,
    AgentTitle,
    FallbackModels,
    ModelName,
    ToolPatterns,
)
from khala.domain.chat import RunBudget
from khala.domain.parts import LikelyAgent, RelevanceBasis
from khala.domain.run_estimates import RunEstimate


class NewAgent(ApiStruct, frozen=True, kw_only=True):
    """An agent to create. Without `tools`, its runs are offered all. `auto` and `default` are reserved names.

    With `executor: remote`, only remote workers execute its runs.
    """

    name: AgentName
    title: AgentTitle
    description: AgentDescription = ""
    instructions: AgentInstructions = ""
    tools: ToolPatterns = ("*",)
    model: ModelName | None = None
    fallbacks: FallbackModels = ()
    examples: AgentExamples = ()
    budget: RunBudget | None = None
    executor: AgentExecutor = "server"


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
    executor: AgentExecutor | msgspec.UnsetType = msgspec.UNSET


class RouteRequest(ApiStruct, frozen=True, kw_only=True):
    """A task, and the thread to which it would be sent."""

    text: str
    thread_id: UUID | None = None


class RoutePreview(ApiStruct, frozen=True, kw_only=True):
    """The agent for a task, `default` if the router `abstained`, and an estimate of its run.

    `confidence` is the probability that the choice is right. `alternatives` are other agents, the most likely first.
    `by`: whether the meaning of the task counted, or only its words.
    """

    agent: str
    confidence: float
    abstained: bool
    why: str
    by: RelevanceBasis
    alternatives: Sequence[LikelyAgent]
    estimate: RunEstimate
