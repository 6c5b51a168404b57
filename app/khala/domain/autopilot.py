"""Autopilot decisions: whether a run continues with another step, and why it stops. Pure."""

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from khala.domain.generation import GenerationOptions
from khala.domain.parts import BlobRef
from khala.domain.run_progress import RunStep

StopReason: TypeAlias = Literal["max_steps", "no_progress", "budget"]
"""Why no further step begins: too many steps, steps without progress, or too many tool calls."""

MAX_TOOL_CALLS = 1000
"""Tool calls of one run."""
MAX_TOOL_CALLS_PER_STEP = 256
"""Tool calls of one step."""
MAX_IDENTICAL_STEPS = 3
"""Consecutive steps with the same calls and the same results, after which the run stops."""
MAX_FAILED_STEPS = 5
"""Consecutive steps in which every call fails, after which the run stops."""
MAX_REPROMPTS = 2
"""Times that a run prompts its model again after a reply that only asks or plans."""
MAX_PLAN_CHARACTERS = 600
"""Characters. A longer reply counts as an answer."""

MAX_SENTENCE_CHARACTERS = 240

_TOOL_VERBS = (
    r"(look|check|read|open|search|browse|list|fetch|get|retrieve|run|execute|call (the|some|my|your)|query|inspect"
    r"|examine|explore|investigate|review|verify|gather|collect|create|write|add|update|change|edit|delete|remove"
    r"|overwrite|replace|move|rename|copy|save|store|try|start|begin|go (on|ahead|through|over)|continue|proceed|test"
    r"|find|do (that|this|it|so)|take a (closer )?look|analy[sz]e|summari[sz]e|calculate|compute|compare|count"
    r"|download|install|set up|prepare|implement|fix|build|use (the|your|my|a|an)? ?[\w-]+ (tool|function)s?)\b"
)
"""Verbs of work that tools do. A reply that offers to explain or to choose is an answer."""
_ADVERBS = r"((first|now|next|then|also|just|quickly|start by|begin by|go ahead and|have to|need to) )*"
_AGREEMENT = (
    r"(okay|ok|sure|great|certainly|of course|right|alright|all right|got it|understood|one moment|absolutely|perfect)"
)
_INTRODUCTION = rf"({_AGREEMENT}\b[,;!.]* +)?((so|first|first of all|next|now|then|after that|finally)\b,? +)?"

_QUESTION = re.compile(
    rf"{_INTRODUCTION}((shall|should|may|can|could) (i|we) {_ADVERBS}{_TOOL_VERBS}.*\?|shall (i|we)\?"
    r"|(would you like|do you want|want) (me|us) to \b.*\?"
    r"|is (that|this) (ok|okay|all right|alright)( (with|for) you)?\?"
    r"|(are you )?ready to (go on|continue|proceed|start|begin)\?"
    r"|let me know (if|whether|when) (i should|(you'd|you would|you) (like|want) me to)\b.*)",
    re.IGNORECASE,
)
_PLAN = re.compile(
    rf"{_INTRODUCTION}(i'll|i will|i am going to|i'm going to|i need to|i have to|let me|let's|my plan is to) "
    rf"{_ADVERBS}{_TOOL_VERBS}.*",
    re.IGNORECASE,
)
_FILLER = re.compile(
    rf"{_AGREEMENT}|(i can|i could) {_ADVERBS}{_TOOL_VERBS}.*|(here is|here's) (my|the) plan|(my|the) plan( is)?"
    r"|this (will|would) take \w+ steps|i need your (permission|approval|consent)\b.*",
    re.IGNORECASE,
)
"""Sentences that may accompany a question or a plan without making the reply an answer."""
_PLAN_ITEM = re.compile(rf"{_ADVERBS}{_TOOL_VERBS}.*", re.IGNORECASE)
_BULLET = re.compile(r"\s*([-*•]|[0-9]{1,2}[.)])\s+")
_ANSWER_SIGN = re.compile(r"=|\b(because|which (is|are|gives|makes|means)|done|here are|i've)\b", re.IGNORECASE)

STOP_MESSAGES: dict[StopReason, str] = {
    "max_steps": "Stopped after {steps} steps, the limit of this run.",
    "no_progress": "Stopped because the last steps made no progress.",
    "budget": "Stopped after {calls} tool calls, the limit of this run.",
}
"""The notices that users read."""
SUMMARY_PROMPT = (
    "Stop here: {why} Call no more tools. Say briefly what you have done, what came of it, and what is left to do."
)
"""The prompt for the model after a stop."""
CONTINUE_PROMPT = (
    "Nobody is there to answer. Go on by yourself with the tools that you have; ask nothing, announce nothing. "
    "If there is nothing left to do, give your final answer."
)
"""The prompt for a model that only asked or planned."""


class AutopilotLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one run: steps, and tool calls."""

    steps: int
    calls: int = MAX_TOOL_CALLS


def must_call(options: GenerationOptions, steps: Sequence[RunStep]) -> bool:
    """Whether the next reply has to call a tool: only the first one."""
    return options.tool_mode == "required" and not any(step.calls for step in steps)


def stop_reason(steps: Sequence[RunStep], limits: AutopilotLimits) -> StopReason | None:
    """The reason to stop after these steps; None to continue."""
    tool_steps = [step for step in steps if step.calls]
    if len(tool_steps) >= limits.steps:
        return "max_steps"
    if sum(len(step.calls) for step in tool_steps) >= limits.calls:
        return "budget"
    stuck = _repeats(tool_steps[-MAX_IDENTICAL_STEPS:]) or _fails(tool_steps[-MAX_FAILED_STEPS:])
    return "no_progress" if stuck else None


def only_asks_or_plans(text: str) -> bool:
    """Whether a reply only asks for permission or announces the next action, in English.

    The reply must be short, and every sentence must be of that kind. The rule is strict, because an answer mistaken for
    a plan is worse than a plan mistaken for the answer.
    """
    text = text.strip()
    if not text or len(text) > MAX_PLAN_CHARACTERS or "`" * 3 in text:
        return False
    kinds = [_classify_line(line) for line in text.replace("’", "'").splitlines() if line.strip()]
    return None not in kinds and any(kinds)


def _classify_line(line: str) -> bool | None:
    """Whether a line asks or plans; None if it contains anything but questions, plans and filler."""
    bullet = _BULLET.match(line)
    sentences = re.split(r"(?<=[.!?:…])\s+", line[bullet.end() :] if bullet else line)
    kinds = [_classify_sentence(sentence, item=bullet is not None) for sentence in sentences if sentence.strip()]
    return None if None in kinds else any(kinds)


def _classify_sentence(sentence: str, *, item: bool) -> bool | None:
    sentence = sentence.strip(" \t*_#>")
    if len(sentence) > MAX_SENTENCE_CHARACTERS or _ANSWER_SIGN.search(sentence):
        return None
    if _QUESTION.fullmatch(sentence) or _PLAN.fullmatch(sentence):
        return True
    is_filler = _FILLER.fullmatch(sentence.rstrip(".!:… ")) or (item and _PLAN_ITEM.match(sentence))
    return False if is_filler else None


def _repeats(steps: Sequence[RunStep]) -> bool:
    if len(steps) < MAX_IDENTICAL_STEPS:
        return False
    return len({msgspec.json.encode([_calls_with_results(step)], order="deterministic") for step in steps}) == 1


def _calls_with_results(step: RunStep) -> list[object]:
    """The calls of a step with their results. A blob is represented by its hash."""
    return [
        (call.tool, call.args, _hash(call.args_blob), result.ok, result.output, _hash(result.blob))
        for call in step.calls
        if (result := call.result) is not None
    ]


def _hash(blob: BlobRef | None) -> str | None:
    return None if blob is None else blob.sha256


def _fails(steps: Sequence[RunStep]) -> bool:
    if len(steps) < MAX_FAILED_STEPS:
        return False
    return not any(call.result is not None and call.result.ok for step in steps for call in step.calls)
