"""The agents that a plan names: they must exist for its author when the plan is created or changed."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from khala.domain.errors import InvalidInput
from khala.domain.plans.plan import PlannedStep
from khala.domain.routing import DEFAULT_AGENT

MAX_SHOWN_CHARACTERS = 64
MAX_SHOWN_AGENTS = 50


def agents_of_config(names: Sequence[str]) -> dict[str, str]:
    """The agents of a plan's rules, by their paths. Raises `InvalidInput` for an agent that is named twice."""
    for number, name in enumerate(names):
        if name in names[:number]:
            raise InvalidInput("This agent is named twice.", path=f"config.agents[{number}]")
    return {f"config.agents[{number}]": name for number, name in enumerate(names)}


def agents_of_steps(steps: Iterable[PlannedStep], place: str) -> dict[str, str]:
    """The agents of these steps, by their paths. `place` is the name of their list."""
    return {f"{place}[{number}].agent": step.agent for number, step in enumerate(steps) if step.agent is not None}


def agents_of_changes(changes: Iterable[Mapping[str, Any]], place: str) -> dict[str, str]:
    """As `agents_of_steps`, of the fields that change."""
    named = {f"{place}[{number}].agent": fields.get("agent") for number, fields in enumerate(changes)}
    return {path: name for path, name in named.items() if isinstance(name, str)}


def check_agents(named: Mapping[str, str], known: Collection[str]) -> None:
    """Raise `InvalidInput` for an agent that is neither the default nor `known`. `named` has the names by path."""
    for path, name in named.items():
        if name != DEFAULT_AGENT and name not in known:
            shown = [DEFAULT_AGENT, *sorted(known)]
            more = "" if len(shown) <= MAX_SHOWN_AGENTS else ", …"
            listed = ", ".join(shown[:MAX_SHOWN_AGENTS]) + more
            raise InvalidInput(f"There is no agent {name[:MAX_SHOWN_CHARACTERS]!r}. There are: {listed}.", path=path)
