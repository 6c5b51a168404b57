"""Events of plans for people: one line each, which stays the same for the same event."""

from datetime import datetime
from typing import Any

from khala.domain.plans.views import MAX_FEED_TEXT_CHARACTERS, PlanEntry, PlanEventEntry
from khala.operations.plan_client.text import one_line

REASONS = {
    "requested": "a person asked for it",
    "review": "the result of a step waits for a review",
    "step_failed": "a step failed",
    "no_progress": "too many tries in a row completed no step",
    "all_limited": "all agents have reached their rate limits",
    "budget": "the budget is used up",
    "access": "the person who started it may no longer write in its thread",
    "completed": "all steps are done",
    "max_iterations": "it has no tries left",
    "no_tasks": "no step is left that can run",
    "error": "a step failed",
    "interrupted": "a person stopped it",
}
"""Why a plan paused or stopped, in words."""
TEXTS = {"step_unfinished": "the agent did not report that the step is complete"}
"""What happened, for events whose type and data do not say it."""
TYPE_WIDTH = 18
STEP_WIDTH = 8


def event_line(event: PlanEventEntry) -> str:
    """`2026-01-31T12:00:00Z step_completed     US-001   try 1: The summary`."""
    columns = [f"{event.at:%Y-%m-%dT%H:%M:%SZ}", f"{event.type:<{TYPE_WIDTH}}"]
    columns.append(f"{one_line(event.step_id or '-', 64):<{STEP_WIDTH}}")
    return " ".join((*columns, one_line(_details(event), MAX_FEED_TEXT_CHARACTERS))).rstrip()


def compact(event: PlanEventEntry) -> dict[str, Any]:
    """The event for programs. Long texts are cut, and lists are left out, as in the feed."""
    data = {
        name: value[:MAX_FEED_TEXT_CHARACTERS] if isinstance(value, str) else value
        for name, value in event.data.items()
        if not isinstance(value, list) and name != "config"
    }
    line = {"type": event.type, "planId": event.plan_id, "seq": event.seq, "at": event.at, "data": data}
    return line if event.step_id is None else {**line, "stepId": event.step_id}


def reason_of(plan: PlanEntry) -> str:
    """Why the plan pauses or has stopped, in words. Empty if it goes on."""
    return "" if plan.reason is None else REASONS.get(plan.reason, plan.reason)


def _details(event: PlanEventEntry) -> str:
    data = event.data
    words = [f"try {data['attempt']}" if "attempt" in data else "", _agent(data), _spent(data)]
    if "count" in data:
        words.append(str(data["count"]))
    if "attempts" in data:
        words.append(f"{data['attempts']} tries completed no step")
    if (not_before := data.get("notBefore")) is not None:
        words.append(f"again at {datetime.fromisoformat(not_before):%H:%M:%SZ}")
    words += [f"mode {data['mode']}" if "mode" in data else "", _flags(data)]
    text = data.get("summary") or data.get("error") or _reason(data) or data.get("title") or TEXTS.get(event.type, "")
    before = ", ".join(filter(None, words))
    return f"{before}: {text}" if before and text else before or str(text)


def _agent(data: dict[str, Any]) -> str:
    return f"agent {data['agent']}" if "agent" in data else ""


def _reason(data: dict[str, Any]) -> str:
    reason = data.get("reason")
    return "" if reason is None else REASONS.get(str(reason), str(reason))


def _spent(data: dict[str, Any]) -> str:
    usd = float(data.get("spent", {}).get("usd", 0))
    return f"${usd:.4f}" if usd else ""


def _flags(data: dict[str, Any]) -> str:
    known = {"interrupted": "interrupted", "lost": "its executor was lost", "byPerson": "by a person"}
    return ", ".join(text for name, text in known.items() if data.get(name))
