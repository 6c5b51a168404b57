"""Parses the directives of a message, which tell the demo model which tools to call. Pure."""

import re
from collections.abc import Iterator
from json import JSONDecoder
from typing import Any

import msgspec

from khala.models import tool_arguments
from khala.models.port import ToolUse

MAX_REPEATS = 256
MAX_CALLS = 1000
"""Calls of one step. Further calls are left out."""
MAX_FAILURES = 9
MAX_WAIT_SECONDS = 600.0

_NUMBERED = r"(?P<name>times|failround|hanground|wait)=(?P<value>[0-9]{1,9}(?:[.,][0-9]{1,3})?)"
_DIRECTIVE = re.compile(
    rf"(?<!\S)/(?:(?P<call>call)\s+(?P<tool>[^\s/{{][^\s{{]*)|(?P<word>then|loop|echo|say|text|ask|plan)(?!\S)|{_NUMBERED}(?!\S))"
)
_VALUES = {"times": r"[0-9]+", "failround": r"[0-9]+(,[0-9])?", "hanground": r"[0-9]+", "wait": r"[0-9]+(\.[0-9]+)?"}
_TEXT_END = re.compile(
    r"(?<!\S)/(?:(?:call|then|loop|echo|say|text|ask|plan|empty|help)(?!\S)"
    r"|(?:times|failround|hanground|wait|words|pace|fail|hang|ratelimit)=)|\n"
)
"""The end of a directive's text."""
_BLANK = re.compile(r"\s*")
_JSON = JSONDecoder()
_ASK = "Shall I go on?"
_PLAN = "I will call the tools one round after the other, and then answer."


class DemoCall(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one tool in one step: one call, or `times` calls that differ in `{i}`, counted from 1."""

    tool: str
    args: dict[str, Any]
    problem: str | None = None
    times: int | None = None


class DemoStep(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one step, after an optional text."""

    calls: tuple[DemoCall, ...]
    text: str = ""


class Directives(msgspec.Struct, frozen=True, kw_only=True):
    """The directives of a message: the steps of the demo model before its answer.

    `openings`: replies without tools before all steps. `rest`: the message without these directives. Steps are numbered
    from 1. `failures`: how often the connection is lost; None is always.
    """

    steps: tuple[DemoStep, ...] = ()
    loop: bool = False
    openings: tuple[str, ...] = ()
    answer: str | None = None
    fail_step: int | None = None
    failures: int | None = None
    hang_step: int | None = None
    wait: float = 0.0
    rest: str = ""

    @property
    def empty(self) -> bool:
        """Whether the message has no such directives."""
        return not self.steps and not self.openings and self.answer is None


def parse(message: str) -> Directives:
    """The directives of a message. Invalid directives, and all text from `/echo` on, stay in its rest."""
    draft, position, rest = _Draft(), 0, []
    while (match := _next_directive(message, position)) is not None:
        rest.append(message[position : match.start()])
        position = draft.add(match)
    rest.append(message[position:])
    return draft.directives("".join(rest))


def calls(directives: Directives, number: int) -> Iterator[ToolUse]:
    """The tool calls of the step with this number, from 1. A loop has no last step."""
    step_calls = directives.steps[min(number, len(directives.steps)) - 1].calls
    count = 0
    for call in step_calls:
        for index in range(1, (call.times or 1) + 1):
            if count == MAX_CALLS:
                return
            count += 1
            values = {"{i}": str(index)} if call.times is not None else {}
            args = _fill(call.args, values | ({"{round}": str(number)} if directives.loop else {}))
            yield ToolUse(id=f"demo-{number}-{count}", name=call.tool, args=args, problem=call.problem)


def _next_directive(message: str, position: int) -> re.Match[str] | None:
    """The next valid directive, unless `/echo` comes before it."""
    for match in _DIRECTIVE.finditer(message, position):
        if match["word"] == "echo":
            return None
        if match["name"] is None or re.fullmatch(_VALUES[match["name"]], match["value"]):
            return match
    return None


class _Draft:
    """Directives that are being parsed."""

    def __init__(self) -> None:
        self._steps: list[DemoStep] = []
        self._calls: list[DemoCall] = []
        self._text = ""
        self._times: int | None = None
        self._openings: list[str] = []
        self._answer: str | None = None
        self._loop = False
        self._numbers: dict[str, str] = {}

    def directives(self, rest: str) -> Directives:
        """All directives that were added."""
        self._end_step()
        failing, _, failures = self._numbers.get("failround", "").partition(",")
        hanging = self._numbers.get("hanground")
        return Directives(
            steps=tuple(self._steps),
            loop=self._loop and bool(self._steps),
            openings=tuple(self._openings),
            answer=self._answer,
            fail_step=int(failing) if failing else None,
            failures=min(int(failures), MAX_FAILURES) if failures else None,
            hang_step=int(hanging) if hanging else None,
            wait=min(float(self._numbers.get("wait", 0)), MAX_WAIT_SECONDS),
            rest=rest,
        )

    def add(self, match: re.Match[str]) -> int:
        """Add a directive. Returns the position of its end."""
        if match["call"]:
            return self._add_call(match)
        if match["name"]:
            self._add_number(match["name"], match["value"])
            return match.end()
        return self._add_word(match["word"], match)

    def _add_number(self, name: str, value: str) -> None:
        if name == "times":
            self._times = min(max(1, int(value)), MAX_REPEATS)
        else:
            self._numbers[name] = value

    def _add_word(self, word: str, match: re.Match[str]) -> int:
        if word == "then":
            self._end_step()
            return match.end()
        if word == "loop":
            self._loop = True
            return match.end()
        end = _text_end(match.string, match.end())
        self._add_text(word, match.string[match.end() : end].strip())
        return end

    def _add_text(self, word: str, text: str) -> None:
        if word == "say":
            self._answer = text
        elif word == "text":
            self._text = text
        else:
            self._openings.append(text or (_ASK if word == "ask" else _PLAN))

    def _add_call(self, match: re.Match[str]) -> int:
        args, problem, end = _arguments(match.string, match.end())
        self._calls.append(DemoCall(tool=match["tool"], args=args, problem=problem, times=self._times))
        self._times = None
        return end

    def _end_step(self) -> None:
        if self._calls:
            self._steps.append(DemoStep(calls=tuple(self._calls), text=self._text))
        self._calls, self._text = [], ""


def _arguments(message: str, position: int) -> tuple[dict[str, Any], str | None, int]:
    """The arguments at this position, the problem if they are invalid, and the position of their end."""
    blank = _BLANK.match(message, position)
    start = blank.end() if blank else position
    if message[start : start + 1] not in ("{", "["):
        return {}, None, position
    try:
        _, end = _JSON.raw_decode(message, start)
    except (ValueError, RecursionError):
        end = _text_end(message, start)
    return *tool_arguments.decode(message[start:end]), end


def _text_end(message: str, position: int) -> int:
    """The end of a text at this position: the next directive, or the end of the line."""
    match = _TEXT_END.search(message, position)
    return match.start() if match else len(message)


def _fill(value: Any, placeholders: dict[str, str]) -> Any:
    """The value with these placeholders replaced in all its texts."""
    if not placeholders:
        return value
    if isinstance(value, dict):
        return {key: _fill(inner, placeholders) for key, inner in value.items()}
    if isinstance(value, list):
        return [_fill(inner, placeholders) for inner in value]
    if isinstance(value, str):
        for placeholder, text in placeholders.items():
            value = value.replace(placeholder, text)
    return value
