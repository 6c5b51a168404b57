"""The model of a chaos run: it says words that nobody else says, remembers them, and misbehaves to order."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.chaos.schedule import Step
from tests.support.agents import PECULIAR
from tests.support.providers import Call, Reply
from tests.support.wires import UseTool

TAG = re.compile(r"#(u\d+\.\d+)# words=(\d+) pace=(\d+) rounds=(\S*)")
"""What a user's text tells the model."""


def asking(name: str, step: Step) -> str:
    """A text to send, by which the model knows what to do."""
    rounds = ",".join("+".join(tools) for tools in step.rounds)
    return f"#{name}# words={step.words} pace={step.pace} rounds={rounds}"


@dataclass
class Production:
    """What the model said in one call, character by character, and the numbers of the tool calls that it made."""

    number: int
    tag: str
    words: int
    calls: tuple[int, ...] = ()
    said: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All that was said."""
        return "".join(self.said)

    @property
    def whole(self) -> bool:
        """All that was to be said was said."""
        return len(self.said) == self.words


class Scripted:
    """Chooses the answer of each call. `mode` is how calls that begin now go wrong, if they do."""

    def __init__(self) -> None:
        self.mode = ""
        self.productions: dict[int, Production] = {}
        self._numbers = itertools.count(1)

    def __call__(self, call: Call) -> Reply:
        """The answer; from here on each token of it is written down as it goes out."""
        number = next(self._numbers)
        tag, words, pace, rounds = question(call.body)
        tools = rounds[done] if (done := _rounds(call.body)) < len(rounds) else ()
        numbers = tuple(number * 100 + place for place in range(len(tools)))
        made = self.productions[number] = Production(number, tag, words, numbers)
        token = call.wire.token

        def recorded(text: str) -> bytes:
            made.said.append(text)
            return token(text)

        call.wire = replace(call.wire, token=recorded)
        uses = (
            UseTool(name=PECULIAR + name, args={"n": n}, id=f"use-{n}") for name, n in zip(tools, numbers, strict=True)
        )
        reply = Reply(
            tokens=tuple(f"<{number}.{place}> " for place in range(words)),
            pace=float(pace),
            calls=tuple(uses),
            usage=(10, words),
        )
        return replace(reply, **_misbehaving(self.mode, words // 2))


def question(body: Mapping[str, Any]) -> tuple[str, int, int, Sequence[tuple[str, ...]]]:
    """What the newest question of the prompt says: its tag, words, pace and rounds of tools."""
    for message in reversed(body["messages"]):
        if message["role"] == "user" and (found := TAG.search(_text(message))):
            rounds = tuple(tuple(one.split("+")) for one in found[4].split(",") if one)
            return found[1], int(found[2]), int(found[3]), rounds
    raise AssertionError(f"the model was asked something that nobody said: {body['messages'][-1]}")


def _rounds(body: Mapping[str, Any]) -> int:
    """How many rounds of tools there were since the question."""
    count = 0
    for message in reversed(body["messages"]):
        if message["role"] == "user" and TAG.search(_text(message)):
            break
        count += bool(message.get("tool_calls"))
    return count


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _misbehaving(mode: str, after: int) -> dict[str, Any]:
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
