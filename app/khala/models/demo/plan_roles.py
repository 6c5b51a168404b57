"""The demo model as a planner, and as the agent of a plan's step: directives for messages that have none. Pure."""

import json
import re

from khala.domain.plans.planner import PLAN_CREATE, PLANNER_INSTRUCTIONS
from khala.domain.plans.results import COMPLETE_STEP
from khala.models.demo.script import shorten
from khala.models.port import Prompt

MAX_TITLE_CHARACTERS = 60
_STEP_TITLE = re.compile(r"^# Your step: (.+)$", re.MULTILINE)
_SLASH = re.compile(r"(?<!\S)/")
"""The beginning of what could be a directive."""


def directives_for(message: str, prompt: Prompt) -> str | None:
    """The directives with which the demo model plays its role in a plan; None if it has none.

    As a planner it makes a plan of three steps. In a step it says what it would do, and completes the step.
    """
    offered = {tool.name for tool in prompt.tools}
    if PLAN_CREATE in offered and PLANNER_INSTRUCTIONS in prompt.system:
        return _planning(message)
    if COMPLETE_STEP in offered and (title := _STEP_TITLE.search(message)) is not None:
        return _working(title[1])
    return None


def _planning(goal: str) -> str:
    title = _quoted(goal) or "A plan"
    steps = [
        {"id": "S1", "title": "Collect what is known", "acceptance": ["The facts are in one list."]},
        {"id": "S2", "title": "Do the work", "dependsOn": ["S1"]},
        {"id": "S3", "title": "Check the result", "dependsOn": ["S2"], "acceptance": ["Nothing is missing."]},
    ]
    plan = json.dumps({"title": title, "goal": shorten(goal, 2_000), "steps": steps})
    said = "I am the demo model: I make the same three steps of every goal."
    return (
        f"/text {said} /call {PLAN_CREATE} {plan} /say The plan is made. Review it, change what you like, and start it."
    )


def _working(title: str) -> str:
    step = _quoted(title)
    said = f"I am the demo model, and only pretend to do “{step}”. A real model would now work on it with its tools."
    summary = json.dumps({"summary": f"Pretended to do “{step}”: the demo model does no work."})
    return f"/text {said} /call {COMPLETE_STEP} {summary}"


def _quoted(text: str) -> str:
    """The text on one short line, in which nothing is a directive."""
    return _SLASH.sub("", shorten(text, MAX_TITLE_CHARACTERS))
