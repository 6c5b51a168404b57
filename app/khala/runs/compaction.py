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
"""Share of the limit that unsummarised messages may still take after a summary, so that summaries are rare."""
MAX_SUMMARY_BYTES = MAX_INLINE_BYTES - 128
"""Bytes of a summary as JSON. Together with its references it has to fit into a part."""
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
        """A summary of the oldest messages and steps. None if there is none: the prompt then leaves them out."""
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
        earlier = self._progress.compaction or Compaction(summary="")
        return Compaction(
            summary=_truncate(replace_unstorable(redacted(reply.text.strip()))),
            message_id=messages[-1].id if messages else earlier.message_id,
            step=max((earlier.step, *(step.step for step in steps))),
        )

    def _old_messages(self, fitted: FittedPrompt, token_counter: ModelTokenCounter, limit: int) -> list[Message]:
        """The messages to summarise: those that did not fit, and more, so that only the newest ones remain."""
        _, messages = prompt.since_summary(PromptInput(history=self._history, progress=self._progress))
        remaining = limit * KEPT_SHARE
        dropped = len(fitted.dropped)
        for index in range(len(messages) - 2, dropped - 1, -1):
            remaining -= token_counter.turns(message_turns(messages[index]))
            if remaining < 0:
                return list(messages[: index + 1])
        return list(messages[:dropped])

    def _turns(
        self, messages: Sequence[Message], steps: Sequence[RunStep], token_counter: ModelTokenCounter, limit: int
    ) -> tuple[PromptTurn, ...]:
        """The text to summarise, without its beginning if that does not fit, and the request for the summary."""
        earlier, _ = prompt.since_summary(PromptInput(history=self._history, progress=self._progress))
        old = [turn for message in messages for turn in message_turns(message)]
        old += step_turns(steps, max_characters=lambda _: MAX_SHORT_CHARACTERS)
        # As plain text, because omitting the beginning could separate a tool call from its outcome.
        texts = ((turn, "\n".join(turn_texts(turn)).strip()) for turn in old)
        # `limit` characters are about a quarter of `limit` tokens, so a long turn is not left out, and displaces few.
        plain = [PromptTurn(role=_speaker_role(turn), text=shorten(text, limit)) for turn, text in texts if text]
        request = PromptTurn(role="user", text=INSTRUCTION)
        remaining = limit - token_counter.text(SYSTEM) - token_counter.turns((*earlier, request))
        newest: list[PromptTurn] = []
        for turn in reversed(plain):
            remaining -= token_counter.turns((turn,))
            if remaining < 0:
                break
            newest.append(turn)
        return (*earlier, *reversed(newest), request)


def _truncate(text: str) -> str:
    """The beginning of the text, in at most `MAX_SUMMARY_BYTES` of JSON."""
    while len(msgspec.json.encode(text)) > MAX_SUMMARY_BYTES:
        text = text[: len(text) * 9 // 10]
    return text


def _speaker_role(turn: PromptTurn) -> Literal["assistant", "user"]:
    return "assistant" if turn.role == "assistant" else "user"
