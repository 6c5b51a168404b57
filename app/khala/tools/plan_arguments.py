"""The schemas of the arguments with which models create and change plans."""

from typing import Any

from khala.domain.plans.plan import (
    MAX_AGENTS,
    MAX_CRITERIA,
    MAX_GOAL_CHARACTERS,
    MAX_INSTRUCTIONS_CHARACTERS,
    MAX_PARALLEL,
    MAX_STEPS,
    MAX_TITLE_CHARACTERS,
)
from khala.domain.plans.step_limits import MAX_ID_CHARACTERS
from khala.tools.workspace_tools import schema

MAX_CRITERION_CHARACTERS = 1_000
MAX_AGENT_CHARACTERS = 63
PLAN_ID: dict[str, Any] = {"type": "string", "description": "The planId from plan_create or plan_status."}
TITLE: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": MAX_TITLE_CHARACTERS}
GOAL: dict[str, Any] = {"type": "string", "maxLength": MAX_GOAL_CHARACTERS, "description": "Every step is told it."}
STEP_ID: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARACTERS}
STEP_IDS: dict[str, Any] = {"type": "array", "maxItems": MAX_STEPS, "items": {"type": "string"}}
_NAME: dict[str, Any] = {"type": "string", "minLength": 1}
_STEP = schema(
    "id",
    "title",
    id=STEP_ID | {"description": "Such as S1."},
    title=TITLE,
    instructions={
        "type": "string",
        "maxLength": MAX_INSTRUCTIONS_CHARACTERS,
        "description": "All that the step's agent has to know. It sees no messages of this conversation.",
    },
    acceptance={
        "type": "array",
        "maxItems": MAX_CRITERIA,
        "items": {"type": "string", "minLength": 1, "maxLength": MAX_CRITERION_CHARACTERS},
        "description": "Criteria that can be checked.",
    },
    dependsOn=STEP_IDS | {"description": "Steps whose results this one needs."},
    priority={
        "type": "integer",
        "minimum": -1_000_000,
        "maximum": 1_000_000,
        "description": "Lower ones run first. Default: 0.",
    },
    phase=_NAME | {"maxLength": MAX_TITLE_CHARACTERS},
    agent=_NAME | {"maxLength": MAX_AGENT_CHARACTERS, "description": "If not the plan's."},
)
NEW_STEPS: dict[str, Any] = {"type": "array", "minItems": 1, "maxItems": MAX_STEPS, "items": _STEP}
STEP_CHANGES: dict[str, Any] = {"type": "array", "maxItems": MAX_STEPS, "items": {"type": "object"}}
"""Steps whose fields the tool itself checks: a schema of them in two tools would make each prompt longer."""
MODE: dict[str, Any] = {
    "enum": ["all", "step", "autopilot"],
    "description": "all: stop at a failure. step: a person approves each result. Default: autopilot.",
}
CONFIG: dict[str, Any] = schema(
    agents={
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_AGENTS,
        "items": _NAME | {"maxLength": MAX_AGENT_CHARACTERS},
        "description": "The agent of the steps, and fallbacks. Default: this conversation's.",
    },
    parallel={"type": "integer", "minimum": 1, "maximum": MAX_PARALLEL, "description": "Steps at once. Default: 1."},
    strategy={"enum": ["retry", "skip", "abort"], "description": "After a failure in autopilot. Default: retry."},
    maxRetries={"type": "integer", "minimum": 0, "maximum": 100},
    stepTimeoutSeconds={"type": "integer", "minimum": 1, "maximum": 7 * 86_400},
)
