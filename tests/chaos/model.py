"""The model of a chaos run: it sends unique words, records them, and fails on demand."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from khala.domain.plans.results import COMPLETE_STEP
from tests.chaos.schedule import Action
from tests.support.agents import PECULIAR
from tests.support.providers import Call, Reply
from tests.support.wires import UseTool

TAG = re.compile(r"#(u\d+\.\d+)# words=(\d+) pace=(\d+) steps=(\S*)")
"""The instructions for the model in a user's text, or in the task of a plan's step."""
COMPLETE = "complete"
"""The last of the tool calls by step, if the model completes a step of a plan."""


def prompt_text(name: str, action: Action, *, completes: bool = False) -> str:
    """A text that instructs the model: words, pace, and tool calls by step."""
    steps = [*action.tool_steps, (COMPLETE,)] if completes else action.tool_steps
    tool_steps = ",".join("+".join(tools) for tools in steps)
    return f"#{name}# words={action.words} pace={action.pace} steps={tool_steps}"


@dataclass
class ModelOutput:
    """The output of one call of the model: the tokens that were sent, and the numbers of its tool calls."""

    number: int
    tag: str
    words: int
    calls: tuple[int, ...] = ()
    sent: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text that was sent."""
        return "".join(self.sent)

    @property
    def complete(self) -> bool:
        """Whether all words were sent."""
        return len(self.sent) == self.words


class ScriptedModel:
    """Chooses the reply to each call. `mode` is the failure of calls that start now, if any."""

    def __init__(self) -> None:
        self.mode = ""
        self.outputs: dict[int, ModelOutput] = {}
        self._numbers = itertools.count(1)

    def __call__(self, call: Call) -> Reply:
        """The reply, each token of which is recorded when it is sent."""
        number = next(self._numbers)
        tag, words, pace, tool_steps = parse_prompt(call.body)
        done = _steps_since_prompt(call.body)
        tools = tool_steps[done] if done < len(tool_steps) else ()
        numbers = tuple(number * 100 + place for place in range(len(tools)))
        output = self.outputs[number] = ModelOutput(number, tag, words, numbers)
        token = call.wire.token

        def recorded(text: str) -> bytes:
            output.sent.append(text)
            return token(text)

        call.wire = replace(call.wire, token=recorded)
        uses = (_use(name, n) for name, n in zip(tools, numbers, strict=True))
        reply = Reply(
            tokens=tuple(f"<{number}.{place}> " for place in range(words)),
            pace=float(pace),
            calls=tuple(uses),
            usage=(10, words),
        )
        return replace(reply, **_failure(self.mode, words // 2))


def _use(name: str, number: int) -> UseTool:
    if name == COMPLETE:
        return UseTool(name=COMPLETE_STEP, args={"summary": f"done {number}"}, id=f"use-{number}")
    return UseTool(name=PECULIAR + name, args={"n": number}, id=f"use-{number}")


def number_of(args: Mapping[str, Any]) -> int | None:
    """The number of a tool call, by its arguments."""
    summary = str(args.get("summary", ""))
    return int(summary.removeprefix("done ")) if summary.startswith("done ") else args.get("n")


def parse_prompt(body: Mapping[str, Any]) -> tuple[str, int, int, Sequence[tuple[str, ...]]]:
    """The instructions in the newest user message: its tag, words, pace, and tools by step."""
    for message in reversed(body["messages"]):
        if message["role"] == "user" and (found := TAG.search(_text(message))):
            tool_steps = tuple(tuple(tools.split("+")) for tools in found[4].split(",") if tools)
            return found[1], int(found[2]), int(found[3]), tool_steps
    raise AssertionError(f"no user sent the prompt: {body['messages'][-1]}")


def _steps_since_prompt(body: Mapping[str, Any]) -> int:
    """The number of steps with tool calls since the newest user message."""
    count = 0
    for message in reversed(body["messages"]):
        if message["role"] == "user" and TAG.search(_text(message)):
            break
        count += bool(message.get("tool_calls"))
    return count


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _failure(mode: str, after: int) -> dict[str, Any]:
    kinds: dict[str, dict[str, Any]] = {
        "": {},
        "429": {"status": 429},
        "500": {"status": 500},
        "hang": {"hang_after": after},
        "cut": {"drop_after": after, "reset": True},
        "end": {"end_after": after},
        "garbage": {"garbage_after": after},
        "failure": {"fail_after": after},
        "empty": {"tokens": (), "calls": ()},
    }
    return kinds[mode]
