"""Which tools the demo model is told to call, and when: a message's directives read as a plan. Pure."""

import re
from collections.abc import Iterator
from json import JSONDecoder
from typing import Any

import msgspec

from khala.models import tool_arguments
from khala.models.port import ToolUse

MAX_REPEATS = 256
MAX_CALLS = 1000
"""Calls of one round; what a message asks for beyond them is left out."""
MAX_FAILURES = 9
LONGEST_WAIT = 600.0

_NUMBERED = r"(?P<name>times|failround|hanground|wait)=(?P<value>[0-9]{1,9}(?:[.,][0-9]{1,3})?)"
_DIRECTIVE = re.compile(
    rf"(?<!\S)/(?:(?P<call>call)\s+(?P<tool>[^\s/{{][^\s{{]*)|(?P<word>then|loop|echo|say|text|ask|plan)(?!\S)|{_NUMBERED}(?!\S))"
)
_VALUES = {"times": r"[0-9]+", "failround": r"[0-9]+(,[0-9])?", "hanground": r"[0-9]+", "wait": r"[0-9]+(\.[0-9]+)?"}
_NEXT = re.compile(
    r"(?<!\S)/(?:(?:call|then|loop|echo|say|text|ask|plan|empty|help)(?!\S)"
    r"|(?:times|failround|hanground|wait|words|pace|fail|hang|ratelimit)=)|\n"
)
"""Where a directive's text ends."""
_BLANK = re.compile(r"\s*")
_JSON = JSONDecoder()
_ASK = "Shall I go on?"
_PLAN = "I will call the tools one round after the other, and then answer."


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one tool in one round: one, or `times` that differ in `{i}`, counted from 1."""

    tool: str
    args: dict[str, Any]
    problem: str | None = None
    times: int | None = None


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one step, after an optional text."""

    orders: tuple[Order, ...]
    text: str = ""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The instructions of a message to the demo model: its steps before the answer.

    `openings` are replies without tools that come before all steps; `rest` is the message without these directives.
    Steps are numbered from 1; `failures` is how often the connection is lost, always where it is None.
    """

    rounds: tuple[PlannedStep, ...] = ()
    loop: bool = False
    openings: tuple[str, ...] = ()
    answer: str | None = None
    fail_round: int | None = None
    failures: int | None = None
    hang_round: int | None = None
    wait: float = 0.0
    rest: str = ""

    @property
    def empty(self) -> bool:
        """Whether the message tells nothing of the sort."""
        return not self.rounds and not self.openings and self.answer is None


def read(message: str) -> Plan:
    """The plan of a message. What can't be read as a directive is left in its rest, as is all from `/echo` on."""
    draft, place, rest = _Draft(), 0, []
    while (found := _directive(message, place)) is not None:
        rest.append(message[place : found.start()])
        place = draft.take(found)
    rest.append(message[place:])
    return draft.plan("".join(rest))


def calls(plan: Plan, number: int) -> Iterator[ToolUse]:
    """The tools that are called in the round of this number, from 1; a loop has no last one."""
    orders = plan.rounds[min(number, len(plan.rounds)) - 1].orders
    count = 0
    for order in orders:
        for index in range(1, (order.times or 1) + 1):
            if count == MAX_CALLS:
                return
            count += 1
            filled = {"{i}": str(index)} if order.times is not None else {}
            args = _fill(order.args, filled | ({"{round}": str(number)} if plan.loop else {}))
            yield ToolUse(id=f"demo-{number}-{count}", name=order.tool, args=args, problem=order.problem)


def _directive(message: str, place: int) -> re.Match[str] | None:
    """The next directive that can be read, unless `/echo` comes before it."""
    for found in _DIRECTIVE.finditer(message, place):
        if found["word"] == "echo":
            return None
        if found["name"] is None or re.fullmatch(_VALUES[found["name"]], found["value"]):
            return found
    return None


class _Draft:
    """A plan that is being read."""

    def __init__(self) -> None:
        self._rounds: list[PlannedStep] = []
        self._orders: list[Order] = []
        self._text = ""
        self._times: int | None = None
        self._openings: list[str] = []
        self._answer: str | None = None
        self._loop = False
        self._numbers: dict[str, str] = {}

    def plan(self, rest: str) -> Plan:
        """All that was taken."""
        self._end_round()
        failing, _, failures = self._numbers.get("failround", "").partition(",")
        hanging = self._numbers.get("hanground")
        return Plan(
            rounds=tuple(self._rounds),
            loop=self._loop and bool(self._rounds),
            openings=tuple(self._openings),
            answer=self._answer,
            fail_round=int(failing) if failing else None,
            failures=min(int(failures), MAX_FAILURES) if failures else None,
            hang_round=int(hanging) if hanging else None,
            wait=min(float(self._numbers.get("wait", 0)), LONGEST_WAIT),
            rest=rest,
        )

    def take(self, found: re.Match[str]) -> int:
        """Take a directive; returns where it ends."""
        if found["call"]:
            return self._take_call(found)
        if found["name"]:
            self._take_number(found["name"], found["value"])
            return found.end()
        return self._take_word(found["word"], found)

    def _take_number(self, name: str, value: str) -> None:
        if name == "times":
            self._times = min(max(1, int(value)), MAX_REPEATS)
        else:
            self._numbers[name] = value

    def _take_word(self, word: str, found: re.Match[str]) -> int:
        if word == "then":
            self._end_round()
            return found.end()
        if word == "loop":
            self._loop = True
            return found.end()
        end = _end(found.string, found.end())
        self._take_text(word, found.string[found.end() : end].strip())
        return end

    def _take_text(self, word: str, text: str) -> None:
        if word == "say":
            self._answer = text
        elif word == "text":
            self._text = text
        else:
            self._openings.append(text or (_ASK if word == "ask" else _PLAN))

    def _take_call(self, found: re.Match[str]) -> int:
        args, problem, end = _arguments(found.string, found.end())
        self._orders.append(Order(tool=found["tool"], args=args, problem=problem, times=self._times))
        self._times = None
        return end

    def _end_round(self) -> None:
        if self._orders:
            self._rounds.append(PlannedStep(orders=tuple(self._orders), text=self._text))
        self._orders, self._text = [], ""


def _arguments(message: str, place: int) -> tuple[dict[str, Any], str | None, int]:
    """The arguments that begin here, why they can't be read where they can't, and where they end."""
    blank = _BLANK.match(message, place)
    start = blank.end() if blank else place
    if message[start : start + 1] not in ("{", "["):
        return {}, None, place
    try:
        _, end = _JSON.raw_decode(message, start)
    except (ValueError, RecursionError):
        end = _end(message, start)
    return *tool_arguments.read(message[start:end]), end


def _end(message: str, place: int) -> int:
    """The end of a text that begins here: the next directive, or the end of the line."""
    found = _NEXT.search(message, place)
    return found.start() if found else len(message)


def _fill(value: Any, words: dict[str, str]) -> Any:
    """The value with these words replaced in all its texts."""
    if not words:
        return value
    if isinstance(value, dict):
        return {key: _fill(inner, words) for key, inner in value.items()}
    if isinstance(value, list):
        return [_fill(inner, words) for inner in value]
    if isinstance(value, str):
        for word, instead in words.items():
            value = value.replace(word, instead)
    return value
