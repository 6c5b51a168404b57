"""Compaction: if not all messages and steps fit into a prompt, the model summarises the oldest ones."""

from collections.abc import Sequence
from typing import Literal

import msgspec
import structlog

from khala.domain.chat import Message
from khala.domain.flush_policy import replace_unstorable
from khala.domain.parts import MAX_INLINE_BYTES, Compaction
from khala.domain.redaction import redacted
from khala.domain.run_progress import RunProgress, RunStep
from khala.models.port import LanguageModel, Prompt, PromptTurn
from khala.runs import prompt
from khala.runs.model_turn import ModelReply, ModelTurn
from khala.runs.prompt import KEPT_STEPS, FittedPrompt, ModelTokenCounter, PromptInput
from khala.runs.prompt_messages import MAX_SHORT_CHARACTERS, message_turns, shorten, step_turns, turn_texts

log = structlog.get_logger()

MAX_SUMMARIES = 5
"""Summaries of one run."""
KEPT_SHARE = 0.4
"""Share of the limit that the newest messages keep, so that summaries are rare."""
MAX_SUMMARY_BYTES = MAX_INLINE_BYTES - 128
"""Bytes of a summary as JSON; with its references it has to fit into a part."""
SYSTEM = "You keep the memory of a conversation between a user and an assistant who has tools."
INSTRUCTION = (
    "Summarise the conversation up to here for the assistant, who will continue it and will see nothing else of it. "
    "Keep what the user wants, decisions, names, numbers, paths, ids, what was done with which tools and with which "
    "results, and what is still to do. At most 400 words, no preamble."
)


class Compactor:
    """Requests the summaries of one run."""

    def __init__(self, turn: ModelTurn, history: Sequence[Message], progress: RunProgress) -> None:
        self._turn = turn
        self._history = history
        self._progress = progress
        self._requested_at: set[int] = set()

    async def summary(self, fitted: FittedPrompt, token_counter: ModelTokenCounter, limit: int) -> Compaction | None:
        """A summary of the oldest messages and steps; None if none can be made, so that they are just left out."""
        step = len(self._progress.steps)
        if step in self._requested_at or len(self._requested_at) >= MAX_SUMMARIES:
            return None
        self._requested_at.add(step)
        messages = self._old_messages(fitted, token_counter, limit) if fitted.dropped else []
        steps = prompt.unsummarised(self._progress)[:-KEPT_STEPS] if fitted.tight else []
        if not messages and not steps:
            return None
        turns = self._turns(messages, steps, token_counter, limit)

        async def build(_: LanguageModel) -> Prompt:
            return Prompt(system=SYSTEM, turns=turns)

        reply = await self._turn.request(build)
        if not isinstance(reply, ModelReply) or not reply.text.strip():
            log.warning("summary_failed", messages=len(messages), steps=len(steps))
            return None
        before = self._progress.compaction or Compaction(summary="")
        return Compaction(
            summary=_truncate(replace_unstorable(redacted(reply.text.strip()))),
            message_id=messages[-1].id if messages else before.message_id,
            step=max((before.step, *(step.step for step in steps))),
        )

    def _old_messages(self, fitted: FittedPrompt, token_counter: ModelTokenCounter, limit: int) -> list[Message]:
        """The messages that did not fit, and all others but the newest."""
        _, messages = prompt.since_summary(PromptInput(history=self._history, progress=self._progress))
        room = limit * KEPT_SHARE
        dropped = len(fitted.dropped)
        for place in range(len(messages) - 2, dropped - 1, -1):
            room -= token_counter.turns(message_turns(messages[place]))
            if room < 0:
                return list(messages[: place + 1])
        return list(messages[:dropped])

    def _turns(
        self, messages: Sequence[Message], steps: Sequence[RunStep], token_counter: ModelTokenCounter, limit: int
    ) -> tuple[PromptTurn, ...]:
        """The end of the text to summarise, as much as the model can read, and the request."""
        before, _ = prompt.since_summary(PromptInput(history=self._history, progress=self._progress))
        old = [turn for message in messages for turn in message_turns(message)]
        old += step_turns(steps, max_characters=lambda _: MAX_SHORT_CHARACTERS)
        # As plain text, so that no tool call is without its outcome where the beginning is cut off.
        texts = ((turn, "\n".join(turn_texts(turn)).strip()) for turn in old)
        # About a quarter of what the model can read: a long turn neither displaces all others nor is left out.
        plain = [PromptTurn(role=_speaker(turn), text=shorten(text, limit)) for turn, text in texts if text]
        request = PromptTurn(role="user", text=INSTRUCTION)
        room = limit - token_counter.text(SYSTEM) - token_counter.turns((*before, request))
        kept: list[PromptTurn] = []
        for turn in reversed(plain):
            room -= token_counter.turns((turn,))
            if room < 0:
                break
            kept.append(turn)
        return (*before, *reversed(kept), request)


def _truncate(text: str) -> str:
    """The beginning of the text, in at most `MAX_SUMMARY_BYTES` of JSON."""
    while len(msgspec.json.encode(text)) > MAX_SUMMARY_BYTES:
        text = text[: len(text) * 9 // 10]
    return text


def _speaker(turn: PromptTurn) -> Literal["assistant", "user"]:
    return "assistant" if turn.role == "assistant" else "user"
