"""A prompt arranged as every provider takes it: voices in turn, outcomes paired with uses, names that are valid."""

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from khala.domain.tools import ToolSpec
from khala.models.port import Prompt, PromptTurn, ToolOutcome, ToolUse

GO_ON = (
    "A technical fault cut off your last message. Go on from exactly where it ends, in the midst of a word if need be. "
    "Repeat nothing, and don't mention the interruption."
)
"""Asked after what was said before: not every provider lets a model go on with its own last message."""
NO_OUTCOME = "The call was interrupted; whether it did anything is not known."
NOTHING = "(nothing)"
"""Told instead of an empty text, which some providers refuse."""


def offered(prompt: Prompt) -> Sequence[ToolSpec]:
    """The tools that the model may call, or, where it may call none, those that it has called.

    Anthropic wants to know what was used.
    """
    if prompt.tools:
        return prompt.tools
    names = dict.fromkeys(_name(use.name) for turn in prompt.turns for use in turn.uses)
    return [
        ToolSpec(name=name, description="Not to be called any more.", parameters={"type": "object"}) for name in names
    ]


def voices(prompt: Prompt) -> Iterator[list[PromptTurn]]:
    """The conversation, in runs of the assistant's turns and of what came between them: some providers insist on turns.

    Turns have something in them. Outcomes come first of what is between two answers, in one turn, as every provider
    wants them right after the uses.
    """
    opening = (PromptTurn(role="system", text=prompt.system),) if prompt.system else ()
    ending = (
        (PromptTurn(role="assistant", text=prompt.said), PromptTurn(role="user", text=GO_ON))
        if prompt.said.strip()
        else ()
    )
    pairs = _Pairs()
    for assistant, run in groupby((*opening, *prompt.turns, *ending), key=lambda turn: turn.role == "assistant"):
        turns = list(run)
        if voice := list(_said(turns, pairs)) if assistant else _asked(turns, pairs):
            yield voice


class _Pairs:
    """Pairs outcomes with their uses, by ids of their own: not every provider takes what another gave.

    An outcome whose use was left behind with older turns is left out, and a use without an outcome gets one: providers
    refuse the one without the other.
    """

    def __init__(self) -> None:
        self._count = 0
        self._open: defaultdict[str, deque[ToolUse]] = defaultdict(deque)

    def use(self, use: ToolUse) -> ToolUse:
        self._count += 1
        called = ToolUse(id=f"call_{self._count}", name=_name(use.name), args=use.args)
        self._open[use.id].append(called)
        return called

    def outcome(self, outcome: ToolOutcome) -> ToolOutcome | None:
        if not self._open[outcome.id]:
            return None
        return _outcome(self._open[outcome.id].popleft(), outcome.text, ok=outcome.ok)

    def left(self) -> list[ToolOutcome]:
        uses = [use for uses in self._open.values() for use in uses]
        self._open.clear()
        return [_outcome(use, NO_OUTCOME, ok=False) for use in uses]


def _outcome(use: ToolUse, text: str, *, ok: bool) -> ToolOutcome:
    return ToolOutcome(id=use.id, name=use.name, text=text if text.strip() else NOTHING, ok=ok)


def _said(turns: Iterable[PromptTurn], pairs: _Pairs) -> Iterator[PromptTurn]:
    for turn in turns:
        # Models begin with a blank line before they call tools, and some refuse to be told of it.
        text = turn.text if turn.text.strip() else ""
        if text or turn.uses:
            yield PromptTurn(role="assistant", text=text, uses=tuple(map(pairs.use, turn.uses)))


def _asked(turns: Iterable[PromptTurn], pairs: _Pairs) -> list[PromptTurn]:
    outcomes: list[ToolOutcome] = []
    asked: list[PromptTurn] = []
    for turn in turns:
        if turn.role == "tool":
            outcomes += filter(None, map(pairs.outcome, turn.outcomes))
        else:
            asked.append(turn)
    outcomes += pairs.left()
    return [PromptTurn(role="tool", outcomes=tuple(outcomes)), *asked] if outcomes else asked


def _name(name: str) -> str:
    """The name of a tool as providers take it: models invent names, too."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "unknown"
