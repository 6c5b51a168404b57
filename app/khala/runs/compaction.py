"""Compaction: when a model can't read all, it is asked for a summary of what is old, which then stands in its place."""

from collections.abc import Sequence
from typing import Literal

import msgspec
import structlog

from khala.domain.chat import Message
from khala.domain.flush_policy import replace_unstorable
from khala.domain.parts import MAX_INLINE_BYTES, Compaction
from khala.domain.redaction import redacted
from khala.domain.run_progress import RunProgress, RunStep
from khala.models.port import Model, Prompt
from khala.models.port import Turn as Told
from khala.runs import prompt
from khala.runs.model_turn import ModelReply, ModelTurn
from khala.runs.prompt import KEPT_ROUNDS, SHORT, FittedPrompt, ModelTokenCounter, PromptInput

log = structlog.get_logger()

MOST_SUMMARIES = 5
"""Of one run."""
KEPT_SHARE = 0.4
"""The part of the limit that the newest messages keep for themselves, so that summaries are rare."""
MOST_BYTES = MAX_INLINE_BYTES - 128
"""Bytes of a summary as JSON: with what it stands for it has to fit into a part."""
SYSTEM = "You keep the memory of a conversation between a user and an assistant who has tools."
INSTRUCTION = (
    "Summarise the conversation up to here for the assistant, who will go on with it and sees nothing else of it. Keep "
    "what the user wants, decisions, names, numbers, paths, ids, what was done with which tools and what came of it, "
    "and what is still to do. At most 400 words, no preamble."
)


class Compactor:
    """Asks for the summaries of one run."""

    def __init__(self, turn: ModelTurn, history: Sequence[Message], progress: RunProgress) -> None:
        self._turn = turn
        self._history = history
        self._progress = progress
        self._asked_at: set[int] = set()

    async def summary(self, found: FittedPrompt, token_counter: ModelTokenCounter, limit: int) -> Compaction | None:
        """A summary of what is oldest, or None where there is none to be had; then the oldest is just left out."""
        round_ = len(self._progress.rounds)
        if round_ in self._asked_at or len(self._asked_at) >= MOST_SUMMARIES:
            return None
        self._asked_at.add(round_)
        messages = self._old_messages(found, token_counter, limit) if found.dropped else []
        rounds = prompt.unsummarised(self._progress)[:-KEPT_ROUNDS] if found.tight else []
        if not messages and not rounds:
            return None
        turns = self._turns(messages, rounds, token_counter, limit)

        async def build(_: Model) -> Prompt:
            return Prompt(system=SYSTEM, turns=turns)

        said = await self._turn.ask(build)
        if not isinstance(said, ModelReply) or not said.text.strip():
            log.warning("no_summary", messages=len(messages), rounds=len(rounds))
            return None
        before = self._progress.compaction or Compaction(summary="")
        return Compaction(
            summary=_fitting(replace_unstorable(redacted(said.text.strip()))),
            message_id=messages[-1].id if messages else before.message_id,
            step=max((before.step, *(round_.step for round_ in rounds))),
        )

    def _old_messages(self, found: FittedPrompt, token_counter: ModelTokenCounter, limit: int) -> list[Message]:
        """The messages that found no room, and of the others all but the newest."""
        _, messages = prompt.since_summary(PromptInput(history=self._history, progress=self._progress))
        room = limit * KEPT_SHARE
        cut = len(found.dropped)
        for place in range(len(messages) - 2, cut - 1, -1):
            room -= token_counter.turns(prompt.turns_of(messages[place]))
            if room < 0:
                return list(messages[: place + 1])
        return list(messages[:cut])

    def _turns(
        self, messages: Sequence[Message], rounds: Sequence[RunStep], token_counter: ModelTokenCounter, limit: int
    ) -> tuple[Told, ...]:
        """What is to be summarised, as much of its end as the model can read, and the request."""
        before, _ = prompt.since_summary(PromptInput(history=self._history, progress=self._progress))
        old = [turn for message in messages for turn in prompt.turns_of(message)]
        # Told as text, so that no call stands without its outcome where the beginning is cut off.
        old += prompt.own_turns(rounds, most=lambda _: SHORT)
        whole = ((turn, "\n".join(prompt.texts(turn)).strip()) for turn in old)
        # About a quarter of what can be read: so one that is long doesn't take the place of all others, or has none.
        told = [Told(role=_voice(turn), text=prompt.shortened(text, limit)) for turn, text in whole if text]
        request = Told(role="user", text=INSTRUCTION)
        room = limit - token_counter.text(SYSTEM) - token_counter.turns((*before, request))
        kept: list[Told] = []
        for turn in reversed(told):
            room -= token_counter.turns((turn,))
            if room < 0:
                break
            kept.append(turn)
        return (*before, *reversed(kept), request)


def _fitting(text: str) -> str:
    while len(msgspec.json.encode(text)) > MOST_BYTES:
        text = text[: len(text) * 9 // 10]
    return text


def _voice(turn: Told) -> Literal["assistant", "user"]:
    return "assistant" if turn.role == "assistant" else "user"
