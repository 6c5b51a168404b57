"""Changes of a plan's rules: fields that are absent stay as they are."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from khala.domain.plans.plan import (
    MAX_AGENTS,
    MAX_PARALLEL,
    AgentName,
    FailureStrategy,
    PlanBudget,
    PlanConfig,
    PlanGit,
)

PlanAgents = Annotated[Sequence[AgentName], Meta(min_length=1, max_length=MAX_AGENTS)]


class PlanConfigChanges(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Rules of a plan. `agents` has the primary agent first, then its fallbacks in order.

    `no_progress`: attempts in a row that may end without completing their step. `rate_limit_retries`: attempts of a
    step with the same agent after a rate limit, before the next agent is tried. `git` commits the work of steps.
    """

    agents: PlanAgents | UnsetType = UNSET
    strategy: FailureStrategy | UnsetType = UNSET
    max_retries: Annotated[int, Meta(ge=0, le=100)] | UnsetType = UNSET
    retry_base_ms: Annotated[int, Meta(ge=0, le=3_600_000)] | UnsetType = UNSET
    rate_limit_retries: Annotated[int, Meta(ge=0, le=100)] | UnsetType = UNSET
    step_delay_ms: Annotated[int, Meta(ge=0, le=3_600_000)] | UnsetType = UNSET
    step_timeout_seconds: Annotated[int, Meta(ge=1, le=7 * 86_400)] | UnsetType = UNSET
    parallel: Annotated[int, Meta(ge=1, le=MAX_PARALLEL)] | UnsetType = UNSET
    no_progress: Annotated[int, Meta(ge=1, le=1_000)] | UnsetType = UNSET
    recover_primary: bool | UnsetType = UNSET
    budget: PlanBudget | UnsetType = UNSET
    git: PlanGit | UnsetType | None = UNSET

    @property
    def named_agents(self) -> Sequence[str]:
        """The agents, if they change."""
        return () if isinstance(self.agents, UnsetType) else self.agents

    def apply(self, config: PlanConfig) -> PlanConfig:
        """These rules with the changes."""
        changes: dict[str, Any] = {
            name: value for name, value in msgspec.structs.asdict(self).items() if value is not UNSET
        }
        if "agents" in changes:
            changes["agents"] = tuple(changes["agents"])
        return msgspec.structs.replace(config, **changes)
