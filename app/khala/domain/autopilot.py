"""The autopilot's judgement: whether an answer goes on, and why it stops. Pure, so that it can be held to examples."""

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from khala.domain.parts import BlobRef
from khala.domain.run_progress import RunStep

StopReason: TypeAlias = Literal["max_steps", "no_progress", "budget"]
"""Why no further round of tools is begun: too many of them, the same again and again, or too many calls."""

MAX_TOOL_CALLS = 1000
"""Tool calls of one run."""
MAX_TOOL_CALLS_PER_STEP = 256
"""Tool calls of one round."""
MAX_IDENTICAL_STEPS = 3
"""Rounds that call the same and hear the same, after which there is no use in a further one."""
MAX_FAILED_STEPS = 5
"""Rounds in which every call fails, likewise."""
MAX_REPROMPTS = 2
"""Replies of one run that only ask or plan and are not taken for the answer."""
MAX_PLAN_CHARACTERS = 600
"""Characters; whoever says more has something to say."""

MAX_SENTENCE_CHARACTERS = 240

_ACTS = (
    r"(look|check|read|open|search|browse|list|fetch|get|retrieve|run|execute|call (the|some|my|your)|query|inspect"
    r"|examine|explore|investigate|review|verify|gather|collect|create|write|add|update|change|edit|delete|remove"
    r"|overwrite|replace|move|rename|copy|save|store|try|start|begin|go (on|ahead|through|over)|continue|proceed|test"
    r"|find|do (that|this|it|so)|take a (closer )?look|analy[sz]e|summari[sz]e|calculate|compute|compare|count"
    r"|download|install|set up|prepare|implement|fix|build|use (the|your|my|a|an)? ?[\w-]+ (tool|function)s?)\b"
)
"""What is announced, or asked for, and done with tools. Whoever wants to explain, or would choose, is answering."""
_SOON = r"((first|now|next|then|also|just|quickly|start by|begin by|go ahead and|have to|need to) )*"
_YES = (
    r"(okay|ok|sure|great|certainly|of course|right|alright|all right|got it|understood|one moment|absolutely|perfect)"
)
_LEAD = rf"({_YES}\b[,;!.]* +)?((so|first|first of all|next|now|then|after that|finally)\b,? +)?"

_ASKS = re.compile(
    rf"{_LEAD}((shall|should|may|can|could) (i|we) {_SOON}{_ACTS}.*\?|shall (i|we)\?"
    r"|(would you like|do you want|want) (me|us) to \b.*\?"
    r"|is (that|this) (ok|okay|all right|alright)( (with|for) you)?\?"
    r"|(are you )?ready to (go on|continue|proceed|start|begin)\?"
    r"|let me know (if|whether|when) (i should|(you'd|you would|you) (like|want) me to)\b.*)",
    re.IGNORECASE,
)
_PLANS = re.compile(
    rf"{_LEAD}(i'll|i will|i am going to|i'm going to|i need to|i have to|let me|let's|my plan is to) "
    rf"{_SOON}{_ACTS}.*",
    re.IGNORECASE,
)
_BESIDES = re.compile(
    rf"{_YES}|(i can|i could) {_SOON}{_ACTS}.*|(here is|here's) (my|the) plan|(my|the) plan( is)?"
    r"|this (will|would) take \w+ steps|i need your (permission|approval|consent)\b.*",
    re.IGNORECASE,
)
"""What may stand beside asking and planning, and isn't worth an answer."""
_ITEMS = re.compile(rf"{_SOON}{_ACTS}.*", re.IGNORECASE)
_BULLET = re.compile(r"\s*([-*•]|[0-9]{1,2}[.)])\s+")
_TELLS = re.compile(r"=|\b(because|which (is|are|gives|makes|means)|done|here are|i've)\b", re.IGNORECASE)

STOP_MESSAGES: dict[StopReason, str] = {
    "max_steps": "Stopped after {steps} rounds of tools, the most that were allowed.",
    "no_progress": "Stopped, because the last rounds of tools brought nothing new.",
    "budget": "Stopped after {calls} tool calls, the most that were allowed.",
}
"""What a person is told."""
SUMMARY_PROMPT = (
    "Stop here: {why} Call no more tools. Say briefly what you have done, what came of it, and what is left to do."
)
"""What the model is told then."""
CONTINUE_PROMPT = (
    "Nobody is there to answer. Go on by yourself with the tools that you have; ask nothing, announce nothing. "
    "If there is nothing left to do, give your final answer."
)
"""What the model is told that only asked or planned."""


class AutopilotLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run may go."""

    steps: int
    calls: int = MAX_TOOL_CALLS


def stop_reason(rounds: Sequence[RunStep], limits: AutopilotLimits) -> StopReason | None:
    """Why there must be no further round of tools after these, if so."""
    acted = [round_ for round_ in rounds if round_.calls]
    if len(acted) >= limits.steps:
        return "max_steps"
    if sum(len(round_.calls) for round_ in acted) >= limits.calls:
        return "budget"
    return "no_progress" if _repeats(acted[-MAX_IDENTICAL_STEPS:]) or _fails(acted[-MAX_FAILED_STEPS:]) else None


def only_asks_or_plans(text: str) -> bool:
    """Whether a reply asks for leave, or says what comes next, in English, and nothing else.

    It must be short, and each of its sentences be of that sort: an answer that is taken for a plan is asked for again,
    which is worse than a plan that is taken for the answer.
    """
    text = text.strip()
    if not text or len(text) > MAX_PLAN_CHARACTERS or "`" * 3 in text:
        return False
    sorts = [_sort(line) for line in text.replace("’", "'").splitlines() if line.strip()]
    return None not in sorts and any(sorts)


def _sort(line: str) -> bool | None:
    """Whether a line asks or plans; None if it says something else."""
    bullet = _BULLET.match(line)
    said = line[bullet.end() :] if bullet else line
    sorts = [_sort_sentence(one, item=bullet is not None) for one in re.split(r"(?<=[.!?:…])\s+", said) if one.strip()]
    return None if None in sorts else any(sorts)


def _sort_sentence(sentence: str, *, item: bool) -> bool | None:
    sentence = sentence.strip(" \t*_#>")
    if len(sentence) > MAX_SENTENCE_CHARACTERS or _TELLS.search(sentence):
        return None
    if _ASKS.fullmatch(sentence) or _PLANS.fullmatch(sentence):
        return True
    besides = _BESIDES.fullmatch(sentence.rstrip(".!:… ")) or (item and _ITEMS.match(sentence))
    return False if besides else None


def _repeats(rounds: Sequence[RunStep]) -> bool:
    if len(rounds) < MAX_IDENTICAL_STEPS:
        return False
    return len({msgspec.json.encode([_heard(round_)], order="deterministic") for round_ in rounds}) == 1


def _heard(round_: RunStep) -> list[object]:
    """What was called and what came of it; what a blob holds is told by its hash."""
    return [
        (call.tool, call.args, _hash(call.args_blob), result.ok, result.output, _hash(result.blob))
        for call in round_.calls
        if (result := call.result) is not None
    ]


def _hash(blob: BlobRef | None) -> str | None:
    return None if blob is None else blob.sha256


def _fails(rounds: Sequence[RunStep]) -> bool:
    if len(rounds) < MAX_FAILED_STEPS:
        return False
    return not any(call.result is not None and call.result.ok for round_ in rounds for call in round_.calls)
