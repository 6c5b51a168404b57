"""Arranges a prompt so that every provider accepts it.

Roles alternate, each tool call has one outcome, ids are unique, and tool names are valid.
"""

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from khala.domain.tools import ToolSpec
from khala.models.port import Prompt, PromptTurn, ToolOutcome, ToolUse

RESUME_PROMPT = (
    "A technical fault cut off your last message. Go on from exactly where it ends, in the midst of a word if need be. "
    "Repeat nothing, and don't mention the interruption."
)
"""The user turn after a partial answer, because some providers cannot continue an assistant's message."""
MISSING_OUTCOME = "The call was interrupted; whether it did anything is not known."
EMPTY_TEXT = "(nothing)"
"""Replaces empty text, which some providers reject."""


def offered_tools(prompt: Prompt) -> Sequence[ToolSpec]:
    """The tools that the model may call. If it may call none, those that it has called.

    Anthropic requires definitions of all tools that the conversation uses.
    """
    if prompt.tools:
        return prompt.tools
    names = dict.fromkeys(_valid_name(use.name) for turn in prompt.turns for use in turn.uses)
    return [
        ToolSpec(name=name, description="Not to be called any more.", parameters={"type": "object"}) for name in names
    ]


def alternate(prompt: Prompt) -> Iterator[list[PromptTurn]]:
    """The conversation as groups of turns, alternating between the assistant and all other roles.

    Some providers require alternating roles. No turn is empty. All outcomes of a group are its first turn, because
    providers require them directly after the uses.
    """
    opening = (PromptTurn(role="system", text=prompt.system),) if prompt.system else ()
    ending = (
        (PromptTurn(role="assistant", text=prompt.partial_answer), PromptTurn(role="user", text=RESUME_PROMPT))
        if prompt.partial_answer.strip()
        else ()
    )
    pairing = _OutcomePairing()
    for is_assistant, group in groupby((*opening, *prompt.turns, *ending), key=lambda turn: turn.role == "assistant"):
        turns = list(group)
        if arranged := list(_assistant_turns(turns, pairing)) if is_assistant else _other_turns(turns, pairing):
            yield arranged


class _OutcomePairing:
    """Pairs outcomes with their uses by new ids, because some providers reject the ids of others.

    Providers reject a use without an outcome, and an outcome without a use. So an outcome is dropped if its use was
    dropped with older turns, and a use without an outcome gets `MISSING_OUTCOME`.
    """

    def __init__(self) -> None:
        self._count = 0
        self._open: defaultdict[str, deque[ToolUse]] = defaultdict(deque)

    def use(self, use: ToolUse) -> ToolUse:
        self._count += 1
        renamed = ToolUse(id=f"call_{self._count}", name=_valid_name(use.name), args=use.args)
        self._open[use.id].append(renamed)
        return renamed

    def outcome(self, outcome: ToolOutcome) -> ToolOutcome | None:
        if not self._open[outcome.id]:
            return None
        return _outcome(self._open[outcome.id].popleft(), outcome.text, ok=outcome.ok)

    def take_missing(self) -> list[ToolOutcome]:
        uses = [use for uses in self._open.values() for use in uses]
        self._open.clear()
        return [_outcome(use, MISSING_OUTCOME, ok=False) for use in uses]


def _outcome(use: ToolUse, text: str, *, ok: bool) -> ToolOutcome:
    return ToolOutcome(id=use.id, name=use.name, text=text if text.strip() else EMPTY_TEXT, ok=ok)


def _assistant_turns(turns: Iterable[PromptTurn], pairing: _OutcomePairing) -> Iterator[PromptTurn]:
    for turn in turns:
        # Some models write a blank line before tool calls, and some providers reject blank text.
        text = turn.text if turn.text.strip() else ""
        if text or turn.uses:
            yield PromptTurn(role="assistant", text=text, uses=tuple(map(pairing.use, turn.uses)))


def _other_turns(turns: Iterable[PromptTurn], pairing: _OutcomePairing) -> list[PromptTurn]:
    outcomes: list[ToolOutcome] = []
    others: list[PromptTurn] = []
    for turn in turns:
        if turn.role == "tool":
            outcomes += filter(None, map(pairing.outcome, turn.outcomes))
        else:
            others.append(turn)
    outcomes += pairing.take_missing()
    return [PromptTurn(role="tool", outcomes=tuple(outcomes)), *others] if outcomes else others


def _valid_name(name: str) -> str:
    """The name of a tool with valid characters only, because models may invent names."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "unknown"
