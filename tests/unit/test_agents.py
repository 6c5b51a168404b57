"""Agents: the built-in ones, their bounds, and the options of their runs."""

import json
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from khala.domain import agents
from khala.domain.agent_seeds import BUILT_IN
from khala.domain.agents import RESERVED_NAMES, AgentDefinition, AgentName
from khala.domain.chat import RunBudget, RunOptions

ROUTER_FIXTURE = Path(__file__).parents[2] / "app" / "web" / "src" / "agent" / "testing" / "built-in-agents.json"


def test_the_browsers_router_is_tested_with_the_built_in_agents() -> None:
    assert json.loads(ROUTER_FIXTURE.read_text()) == [
        {
            "id": agent.name,
            "name": agent.title,
            "description": agent.description,
            "instructions": agent.instructions,
            "tools": list(agent.tools),
            "prompts": list(agent.examples),
        }
        for agent in BUILT_IN
    ]
    assert len(BUILT_IN) == 8


def test_the_built_in_agents_are_within_the_bounds_of_all_agents() -> None:
    for agent in BUILT_IN:
        fields = {name: getattr(agent, name) for name in AgentDefinition.__struct_fields__}
        msgspec.convert(fields, AgentDefinition)
        assert msgspec.convert(agent.name, AgentName) not in RESERVED_NAMES
        assert (agent.owner, agent.visibility) == (None, "public")


@pytest.mark.parametrize("name", ["", "Poet", "1st", "-a", "a_b", "a" * 64, "poet\n"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(name, AgentName)


def test_of_two_budgets_the_lower_limit_of_each_measure_applies() -> None:
    one, other = RunBudget(usd=Decimal("0.5"), tokens=900), RunBudget(usd=Decimal(2), tokens=100, tool_calls=0)
    assert agents.lower_budget(one, other) == RunBudget(usd=Decimal("0.5"), tokens=100, tool_calls=0)
    assert agents.lower_budget(None, other) == agents.lower_budget(other, None) == other
    assert agents.lower_budget(None, None) is None


def test_the_stored_options_keep_those_of_the_run_and_the_version_of_its_agent() -> None:
    options = RunOptions(agent="writer", autopilot=True, max_steps=7, instructions="Be brief.", tools=["grep"])
    chosen = agents.choose(options, BUILT_IN[-1], None)
    assert {name: getattr(chosen, name) for name in RunOptions.__struct_fields__} == msgspec.structs.asdict(options)
    assert (chosen.agent_version, chosen.agent_id) == (BUILT_IN[-1].version, None)
    assert agents.apply(BUILT_IN[-1], chosen).instructions == f"{BUILT_IN[-1].instructions}\n\nBe brief."
