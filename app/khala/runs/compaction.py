"""Compaction: if not all messages and steps fit into a prompt, the model summarises the oldest ones."""

from collections.abc import Sequence
from typing import Literal

import msgspec
import structlog

from khala.domain.chat import Message
from khala.domain.context import ContextOverflow, SectionInput, build_context
from khala.domain.flush_policy import replace_unstorable
from khala.domain.parts import MAX_INLINE_BYTES, Compaction
from khala.domain.redaction import redacted
from khala.domain.run_progress import RunProgress, RunStep
from khala.models.port import LanguageModel, Prompt, PromptTurn
from khala.runs import prompt
from khala.runs.model_turn import BuiltPrompt, ModelReply, ModelTurn, PromptBuilder
from khala.runs.prompt import KEPT_STEPS, FittedPrompt, PromptInput
from khala.runs.prompt_items import Turns, fixed_item, summary_items, turn_item
from khala.runs.prompt_limits import PromptLimit, PromptLimits, PromptTooLongError
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

    def __init__(
        self, turn: ModelTurn, history: Sequence[Message], progress: RunProgress, limits: PromptLimits
    ) -> None:
        self._turn = turn
        self._limits = limits
        self._history = history
        self._progress = progress
        self._requested_at: set[int] = set()

    async def summary(self, fitted: FittedPrompt, limit: PromptLimit) -> Compaction | None:
        """A summary of the oldest messages and steps. None if there is none: the prompt then leaves them out."""
        step = len(self._progress.steps)
        if step in self._requested_at or len(self._requested_at) >= MAX_SUMMARIES:
            return None
        self._requested_at.add(step)
        messages = self._old_messages(fitted, limit) if fitted.dropped else []
        steps = prompt.unsummarised(self._progress)[:-KEPT_STEPS] if fitted.tight else []
        if not messages and not steps:
            return None
        reply = await self._turn.request(self._prompt_builder(messages, steps))
        if not isinstance(reply, ModelReply) or not reply.text.strip():
            log.warning("summary_failed", messages=len(messages), steps=len(steps))
            return None
        earlier = self._progress.compaction or Compaction(summary="")
        return Compaction(
            summary=_truncate(replace_unstorable(redacted(reply.text.strip()))),
            message_id=messages[-1].id if messages else earlier.message_id,
            step=max((earlier.step, *(step.step for step in steps))),
        )

    def _old_messages(self, fitted: FittedPrompt, limit: PromptLimit) -> list[Message]:
        """The messages to summarise: those that did not fit, and more, so that only the newest ones remain."""
        _, messages = prompt.since_summary(PromptInput(history=self._history, progress=self._progress))
        remaining = limit.tokens * KEPT_SHARE
        dropped = len(fitted.dropped)
        for index in range(len(messages) - 2, dropped - 1, -1):
            remaining -= limit.counter.turns(message_turns(messages[index]))
            if remaining < 0:
                return list(messages[: index + 1])
        return list(messages[:dropped])

    def _prompt_builder(self, messages: Sequence[Message], steps: Sequence[RunStep]) -> PromptBuilder:
        """Builds the prompt for the summary, without the oldest turns if they do not fit."""
        earlier, _ = prompt.since_summary(PromptInput(history=self._history, progress=self._progress))
        old = [turn for message in messages for turn in message_turns(message)]
        old += step_turns(steps, max_characters=lambda _: MAX_SHORT_CHARACTERS)
        # As plain text, because omitting the beginning could separate a tool call from its outcome.
        texts = [(_speaker_role(turn), "\n".join(turn_texts(turn)).strip()) for turn in old]

        async def build(model: LanguageModel, max_tokens: int | None) -> BuiltPrompt:
            limit = await self._limits.of_model(model, max_tokens)
            # `tokens` characters are about a quarter of `tokens`, so a long turn is not left out, and displaces few.
            plain = [PromptTurn(role=role, text=shorten(text, limit.tokens)) for role, text in texts if text]
            request = PromptTurn(role="user", text=INSTRUCTION)
            return _summary_prompt(earlier, plain, request, limit)

        return build


def _summary_prompt(
    earlier: str | None, turns: Sequence[PromptTurn], request: PromptTurn, limit: PromptLimit
) -> BuiltPrompt:
    """The prompt for a summary of these turns and of the earlier summary."""
    counter = limit.counter
    fixed = fixed_item("system", counter.text(SYSTEM) + counter.turns((request,)))
    newest_first = [[turn_item(f"turn:{index}", turn, counter)] for index, turn in reversed(list(enumerate(turns)))]
    sections: list[SectionInput[Turns]] = [
        SectionInput(name="instructions", groups=[[fixed]]),
        SectionInput(name="summary", groups=[summary_items(earlier, counter)]),
        SectionInput(name="turns", groups=newest_first),
    ]
    try:
        filled = build_context(sections, limit.tokens)
    except ContextOverflow:
        raise PromptTooLongError from None
    told = [turn for name in ("summary", "turns") for turns in reversed(filled[name].contents) for turn in turns]
    return BuiltPrompt(
        Prompt(system=SYSTEM, turns=(*told, request)), limit.record([s.report for s in filled.values()], "summary")
    )


def _truncate(text: str) -> str:
    """The beginning of the text, in at most `MAX_SUMMARY_BYTES` of JSON."""
    while len(msgspec.json.encode(text)) > MAX_SUMMARY_BYTES:
        text = text[: len(text) * 9 // 10]
    return text


def _speaker_role(turn: PromptTurn) -> Literal["assistant", "user"]:
    return "assistant" if turn.role == "assistant" else "user"
