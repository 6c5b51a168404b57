"""Builds prompts within a limit of tokens: instructions, the newest messages that fit, and the run's own steps."""

import math
from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from khala.domain.chat import Message
from khala.domain.fold import CompactionBlock, text_of
from khala.domain.run_progress import RunProgress, RunStep
from khala.domain.tools import ToolSpec
from khala.models import prompt_files
from khala.models.port import ModelFailed, Prompt, PromptFile, PromptTurn
from khala.models.token_counter import TokenCounter, estimate_tool
from khala.runs.prompt_messages import (
    MAX_EARLIER_CHARACTERS,
    MAX_OUTPUT_CHARACTERS,
    MAX_SHORT_CHARACTERS,
    message_turns,
    step_turns,
    turn_texts,
)

MAX_MESSAGES = 1000
"""Messages that are read for one prompt."""
MAX_TOKEN_BYTES = 16
"""Approximate bytes of the longest token. It bounds how much of the history is read for one prompt."""
TURN_TOKENS = 4
"""Tokens of a turn beyond its text."""
FILE_TOKENS = 1000
"""Approximate tokens of an image or a document."""
KEPT_STEPS = 2
"""The number of newest steps, whose outputs are shortened last."""
TOOLS_SHARE = 0.4
"""Share of the limit that the descriptions of tools may take."""
TIGHT_SHARE = 0.5
"""Share of the limit above which the run's own steps are summarised."""
SUMMARY_HEADING = "Summary of the conversation so far:\n\n"


class PromptInput(msgspec.Struct, kw_only=True):
    """The content of a prompt: the messages up to the question, and the progress of the run.

    `files` are the contents of attached files that were read. `instruction` is a last instruction to the model.
    """

    history: Sequence[Message]
    progress: RunProgress
    files: Mapping[UUID, bytes] = {}
    instruction: str = ""


class FittedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt within its limit, and the messages that did not fit, oldest first.

    `tight` says that the run's own steps take most of the limit, or had to be shortened.
    """

    prompt: Prompt
    dropped: Sequence[Message]
    tight: bool


class ModelTokenCounter:
    """Counts the tokens of texts and turns for one model."""

    def __init__(self, counter: TokenCounter, model: str) -> None:
        self._counter = counter
        self._model = model

    def text(self, text: str) -> int:
        """Tokens of this text."""
        return self._counter.count(text, self._model).tokens + TURN_TOKENS if text else 0

    def turns(self, turns: Sequence[PromptTurn]) -> int:
        """Tokens of these turns."""
        return sum(self.text("\n".join(turn_texts(turn))) + FILE_TOKENS * _documents(turn) for turn in turns)


def fit(
    content: PromptInput,
    *,
    system: str,
    tools: Sequence[ToolSpec],
    limit: int,
    token_counter: ModelTokenCounter,
    reads_tools: bool = True,
    tools_limit: float = math.inf,
) -> FittedPrompt:
    """The prompt in at most `limit` tokens.

    If it is too long, outputs of steps are shortened, then the oldest messages and steps are left out. Only the first
    tools whose descriptions fit into their share of the limit and into `tools_limit` tokens are offered. If the model
    does not read descriptions as input (`reads_tools`), all tools are offered.

    Raises `ModelFailed` if the question and the run's steps alone are too long.
    """
    progress = content.progress
    summary, messages = since_summary(content)
    ending = (PromptTurn(role="user", text=content.instruction),) if content.instruction else ()
    fixed = (
        token_counter.text(system)
        + token_counter.text(progress.pending_text)
        + token_counter.turns((*summary, *ending))
    )
    offered, taken = _affordable(tools, min(TOOLS_SHARE * limit, tools_limit)) if reads_tools else (tuple(tools), 0)
    remaining = limit - fixed - taken
    older = [(message, message_turns(message, content.files)) for message in messages[:-1]]
    question = _question(messages[-1], content.files, remaining, token_counter)
    remaining -= token_counter.turns(question)
    own, shortened = _own_turns(progress, remaining, token_counter)
    taken = token_counter.turns(own)
    remaining -= taken
    if remaining < 0:
        raise ModelFailed("context_exceeded", "This message is longer than the model can read.")
    kept = _fitting_messages(older, remaining, token_counter)
    turns = (turn for _, message in older[len(older) - kept :] for turn in message)
    return FittedPrompt(
        prompt=Prompt(
            system=system,
            turns=(*summary, *turns, *question, *own, *ending),
            tools=offered,
            partial_answer=progress.pending_text,
        ),
        dropped=[message for message, _ in older[: len(older) - kept]],
        tight=shortened or taken > TIGHT_SHARE * limit,
    )


def system_prompt(system: str, history: Sequence[Message], *, requested: str = "") -> tuple[str, list[Message]]:
    """The instructions as one text, and the messages that are not instructions.

    The operator's instructions come first, then those requested with the run, then the history's own.
    """
    own = [text_of(message.content or ()) for message in history if message.role == "system"]
    instructions = "\n\n".join(filter(None, (system, requested, *own)))
    return instructions, [message for message in history if message.role != "system"]


def since_summary(content: PromptInput) -> tuple[tuple[PromptTurn, ...], Sequence[Message]]:
    """The newest summary as a turn, if there is one, and the messages that it does not cover."""
    messages = content.history
    newest: tuple[str, UUID | None] | None = None
    for message in messages:
        for block in message.content or ():
            if isinstance(block, CompactionBlock) and block.message_id is not None:
                newest = block.summary, block.message_id
    own = content.progress.compaction
    if own is not None:
        newest = own.summary, own.message_id or (newest[1] if newest else None)
    if newest is None:
        return (), messages
    summary, last = newest
    start = next((index + 1 for index, message in enumerate(messages[:-1]) if message.id == last), 0)
    return (PromptTurn(role="system", text=SUMMARY_HEADING + summary),), messages[start:]


def unsummarised(progress: RunProgress) -> list[RunStep]:
    """The steps of the run that no summary covers."""
    summarised_step = progress.compaction.step if progress.compaction else 0
    indexes = (index for index, step in enumerate(progress.steps, 1) if 0 < step.step <= summarised_step)
    return progress.steps[max(indexes, default=0) :]


def _affordable(tools: Sequence[ToolSpec], limit: float) -> tuple[tuple[ToolSpec, ...], int]:
    """The first tools whose descriptions fit into `limit` tokens, and the tokens that they take."""
    taken = 0
    for index, tool in enumerate(tools):
        cost = estimate_tool(tool)
        if taken + cost > limit:
            return tuple(tools[:index]), taken
        taken += cost
    return tuple(tools), taken


def _own_turns(
    progress: RunProgress, remaining: int, token_counter: ModelTokenCounter
) -> tuple[list[PromptTurn], bool]:
    """The turns of the run's own steps, and whether they were shortened.

    Outputs of all but the newest steps are shortened first, then those of the newest; then the oldest steps are left
    out.
    """
    steps = unsummarised(progress)
    turns = list(step_turns(steps, max_characters=lambda _: MAX_OUTPUT_CHARACTERS))
    if token_counter.turns(turns) <= remaining:
        return turns, False
    newest = {id(step) for step in steps[-KEPT_STEPS:]}
    for characters in (MAX_OUTPUT_CHARACTERS, MAX_EARLIER_CHARACTERS, MAX_SHORT_CHARACTERS):
        limits = {id(step): characters if id(step) in newest else MAX_SHORT_CHARACTERS for step in steps}
        turns = list(step_turns(steps, max_characters=lambda step, limits=limits: limits[id(step)]))  # type: ignore[misc]
        if token_counter.turns(turns) <= remaining:
            return turns, True
    while len(steps) > 1 and token_counter.turns(turns) > remaining:
        steps = steps[1:]
        turns = list(step_turns(steps, max_characters=lambda _: MAX_SHORT_CHARACTERS))
    return turns, True


def _question(
    message: Message, files: Mapping[UUID, bytes], remaining: int, token_counter: ModelTokenCounter
) -> list[PromptTurn]:
    """The message to answer. Its files are included if they fit, and otherwise only mentioned."""
    turns = message_turns(message, files, in_full=True)
    return turns if token_counter.turns(turns) <= remaining else message_turns(message, in_full=True)


def _fitting_messages(
    older: Sequence[tuple[Message, list[PromptTurn]]], remaining: int, token_counter: ModelTokenCounter
) -> int:
    """The number of newest messages that fit."""
    kept = 0
    for _, turns in reversed(older):
        remaining -= token_counter.turns(turns)
        if remaining < 0:
            break
        kept += 1
    return kept


def _documents(turn: PromptTurn) -> int:
    """The number of images and PDF files of the turn."""
    return sum(map(_is_document, turn.files))


def _is_document(file: PromptFile) -> bool:
    return prompt_files.kind_of(file) in ("image", "pdf")
