"""The autopilot's judgement: whether an answer goes on, and why it stops. Pure, so that it can be held to examples."""

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from app.domain.parts import BlobRef
from app.domain.rounds import Round

Stop: TypeAlias = Literal["max_steps", "no_progress", "budget"]
"""Why no further round of tools is begun: too many of them, the same again and again, or too many calls."""

MOST_CALLS = 1000
"""Tool calls of one run."""
MOST_AT_ONCE = 256
"""Tool calls of one round."""
SAME_ROUNDS = 3
"""Rounds that call the same and hear the same, after which there is no use in a further one."""
FAILED_ROUNDS = 5
"""Rounds in which every call fails, likewise."""
MOST_REPROMPTS = 2
"""Replies of one run that only ask or plan and are not taken for the answer."""
LONGEST_PLAN = 600
"""Characters; whoever says more has something to say."""

_ASKS = re.compile(
    r"\b(shall|should|may|can|could) (i|we)\b|\b(would|do) you (like|want) (me|us) to\b"
    r"|\blet me know (if|whether|when)\b|\bis (that|this) (ok|okay|all right)\b"
    r"|\b(ready|okay|ok|want me) to (go on|continue|proceed|start|begin)\b",
    re.IGNORECASE,
)
_PLANS = re.compile(
    r"^\W*((okay|ok|sure|great|certainly|of course|right|alright)\b\W*)?"
    r"((first|next|now|then)\b\W*)?(i('ll| will| am going to|'m going to| need to| would| can)|let me|let's|my plan)\b",
    re.IGNORECASE,
)
_DONE = re.compile(
    r"\b(done|finished|completed|created|wrote|written|found|fixed|updated|added|removed|result|results|here (is|are)|"
    r"i('ve| have))\b",
    re.IGNORECASE,
)

SENTENCES: dict[Stop, str] = {
    "max_steps": "Stopped after {steps} rounds of tools, the most that were allowed.",
    "no_progress": "Stopped, because the last rounds of tools brought nothing new.",
    "budget": "Stopped after {calls} tool calls, the most that were allowed.",
}
"""What a person is told."""
SUMMARY = (
    "Stop here: {why} Call no more tools. Say briefly what you have done, what came of it, and what is left to do."
)
"""What the model is told then."""
REPROMPT = (
    "Nobody is there to answer. Go on by yourself with the tools that you have; ask nothing, announce nothing. "
    "If there is nothing left to do, give your final answer."
)
"""What the model is told that only asked or planned."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run may go."""

    steps: int
    calls: int = MOST_CALLS


def stop(rounds: Sequence[Round], limits: Limits) -> Stop | None:
    """Why there must be no further round of tools after these, if so."""
    acted = [round_ for round_ in rounds if round_.calls]
    if len(acted) >= limits.steps:
        return "max_steps"
    if sum(len(round_.calls) for round_ in acted) >= limits.calls:
        return "budget"
    return "no_progress" if _repeats(acted[-SAME_ROUNDS:]) or _fails(acted[-FAILED_ROUNDS:]) else None


def only_asks_or_plans(text: str) -> bool:
    """Whether a reply asks for leave, or says what comes next, and nothing else.

    It must be short, and end in such a question or begin with such an announcement without telling of anything done.
    """
    text = text.strip()
    if not text or len(text) > LONGEST_PLAN or "```" in text:
        return False
    last = re.split(r"(?<=[.!?:])\s+|\n+", text)[-1]
    if last.endswith("?") and _ASKS.search(last):
        return not _DONE.search(text)
    return bool(_PLANS.match(text)) and not _DONE.search(text)


def _repeats(rounds: Sequence[Round]) -> bool:
    if len(rounds) < SAME_ROUNDS:
        return False
    return len({msgspec.json.encode([_heard(round_)], order="deterministic") for round_ in rounds}) == 1


def _heard(round_: Round) -> list[object]:
    """What was called and what came of it; what a blob holds is told by its hash."""
    return [
        (call.tool, call.args, _hash(call.args_blob), result.ok, result.output, _hash(result.blob))
        for call in round_.calls
        if (result := call.result) is not None
    ]


def _hash(blob: BlobRef | None) -> str | None:
    return None if blob is None else blob.sha256


def _fails(rounds: Sequence[Round]) -> bool:
    if len(rounds) < FAILED_ROUNDS:
        return False
    return not any(call.result is not None and call.result.ok for round_ in rounds for call in round_.calls)
