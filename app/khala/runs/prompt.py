"""Builds the prompt of a model call from a conversation, within a limit of tokens, by the rules of `domain.context`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

import msgspec

from khala.domain.chat import Message
from khala.domain.context import (
    ContextItem,
    ContextOverflow,
    ContextSection,
    FilledSection,
    LeftOut,
    SectionInput,
    SectionName,
    build_context,
)
from khala.domain.fold import CompactionBlock, FileBlock, text_of
from khala.domain.parts import RecalledMemory, RelevanceBasis
from khala.domain.preferences import FolderInstructions
from khala.domain.run_progress import RunProgress, RunStep
from khala.domain.tools import ToolSpec
from khala.models.port import Prompt, PromptTurn
from khala.models.token_counter import estimate_tool
from khala.runs.prompt_files import NO_FOLDER_FILES, FolderContents
from khala.runs.prompt_items import (
    FileItem,
    PromptItems,
    ToolItem,
    Turns,
    fixed_item,
    folder_turns,
    memory_items,
    memory_turns,
    message_size,
    step_size,
    summary_items,
)
from khala.runs.prompt_limits import PromptTooLongError
from khala.runs.prompt_tokens import ModelTokenCounter
from khala.runs.usage_tally import BYTES_PER_TOKEN

MAX_MESSAGES = 1000
"""Messages that are read for one prompt."""
MAX_TOKEN_BYTES = 16
"""Approximate bytes of the longest token. It bounds how much of the history is read for one prompt."""
KEPT_STEPS = 2
"""The number of newest steps that a summary does not cover."""
PERSONAL = "The person whom you answer prefers this in all conversations:\n{text}"
IN_FOLDER = 'The person whom you answer prefers this in the conversations of their folder "{name}":\n{text}'
MAX_FOLDER_TOKENS = 24_000
"""Tokens of the files of the folder in one prompt, however much the model reads: each call pays for them again."""
TIGHT_SHARE = 0.5
"""Share of the limit above which the run's own steps are summarised."""


class ToolOffer(msgspec.Struct, frozen=True, kw_only=True):
    """The tools for a prompt, in the order in which the model reads them.

    `ranks`: by name, the order in which they enter the prompt; without it, they enter in their own order. `max_tokens`
    bounds their definitions. `unrelated` were left out before, by their words or also their meaning (`by`).
    """

    specs: Sequence[ToolSpec] = ()
    ranks: Mapping[str, int] = {}
    max_tokens: float = math.inf
    unrelated: Sequence[ToolSpec] = ()
    by: RelevanceBasis = "words"


NO_TOOLS_OFFERED = ToolOffer()


class PromptInput(msgspec.Struct, kw_only=True):
    """The content of a prompt: the messages up to the question, and the progress of the run.

    `memories` are those recalled for the question, the most relevant first. `files` are the contents of attached files
    that were read. `instruction` is a last instruction to the model. `items` remembers what was counted: the prompts of
    one run share it.
    """

    history: Sequence[Message]
    progress: RunProgress
    memories: Sequence[RecalledMemory] = ()
    files: Mapping[UUID, bytes] = {}
    folder_files: FolderContents = NO_FOLDER_FILES
    """The files of the folder of the thread, and the contents of those that were read."""
    instruction: str = ""
    personal: str | None = None
    """The person's own instructions, which the system's instructions contain."""
    folder: FolderInstructions | None = None
    """The person's instructions for the folder of the thread, which the system's instructions contain."""
    items: PromptItems = msgspec.field(default_factory=PromptItems)


class FittedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt within its limit, its sections, and the messages that did not fit, oldest first.

    `tight` says that the run's own steps take most of the limit, or had to be shortened.
    """

    prompt: Prompt
    sections: Sequence[ContextSection]
    dropped: Sequence[Message]
    tight: bool


def fit(
    content: PromptInput,
    *,
    system: str,
    limit: int,
    token_counter: ModelTokenCounter,
    tools: ToolOffer = NO_TOOLS_OFFERED,
    reads_tools: bool = True,
) -> FittedPrompt:
    """The prompt in at most `limit` tokens.

    The instructions, the question, the text so far, the newest step and the summary are always included; outputs of the
    step and the summary may be shortened. The other steps come before older messages, and the newest before older ones.
    If the model does not read definitions of tools as input (`reads_tools`), all tools are offered.

    Raises `PromptTooLongError` if not even the required items fit.
    """
    assembly = _PromptAssembly(content, system, tools, token_counter, reads_tools=reads_tools)
    try:
        filled = build_context(assembly.sections(), limit)
    except ContextOverflow:
        raise PromptTooLongError from None
    return assembly.assemble(filled, limit)


def system_prompt(
    system: str,
    history: Sequence[Message],
    personal: str | None = None,
    folder: FolderInstructions | None = None,
    requested: str = "",
) -> tuple[str, list[Message]]:
    """The instructions as one text, and the messages that are not instructions.

    The operator's instructions come first, then the person's own, those for the folder of the thread, those of the
    agent and the run, and the history's.
    """
    own = [text_of(message.content or ()) for message in history if message.role == "system"]
    instructions = "\n\n".join(filter(None, (system, personal_text(personal), folder_text(folder), requested, *own)))
    return instructions, [message for message in history if message.role != "system"]


def personal_text(personal: str | None) -> str:
    """The person's own instructions, as they stand in the prompt."""
    return PERSONAL.format(text=personal) if personal else ""


def folder_text(folder: FolderInstructions | None) -> str:
    """The person's instructions for the folder of the thread, as they stand in the prompt."""
    return IN_FOLDER.format(name=folder.name, text=folder.text) if folder else ""


def since_summary(content: PromptInput) -> tuple[str | None, Sequence[Message]]:
    """The newest summary, if there is one, and the messages that it does not cover."""
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
        return None, messages
    summary, last = newest
    start = next((index + 1 for index, message in enumerate(messages[:-1]) if message.id == last), 0)
    return summary, messages[start:]


def unsummarised(progress: RunProgress) -> list[RunStep]:
    """The steps of the run that no summary covers."""
    summarised_step = progress.compaction.step if progress.compaction else 0
    indexes = (index for index, step in enumerate(progress.steps, 1) if 0 < step.step <= summarised_step)
    return progress.steps[max(indexes, default=0) :]


class _PromptAssembly:
    """The items of one prompt, and the prompt that is made of the chosen ones."""

    def __init__(
        self,
        content: PromptInput,
        system: str,
        tools: ToolOffer,
        token_counter: ModelTokenCounter,
        *,
        reads_tools: bool,
    ) -> None:
        items, progress = content.items, content.progress
        self._content = content
        self._system = system
        self._counter = token_counter
        self._summary, messages = since_summary(content)
        self._covered = content.history[: len(content.history) - len(messages)]
        self._question = items.question(messages[-1], token_counter)
        self._older = [items.message(message, token_counter) for message in reversed(messages[:-1])]
        steps = unsummarised(progress)
        first = len(progress.steps) - len(steps)
        self._steps = [
            items.step(first + index, steps[index], token_counter, required=index == len(steps) - 1)
            for index in reversed(range(len(steps)))
        ]
        self._files = [
            file for message in reversed(messages) for file in items.files(message, content.files, token_counter)
        ]
        can_read = any(spec.name == "read_blob" and spec.source == "builtin" for spec in tools.specs)
        self._folder_files = items.folder_files(content.folder_files, token_counter, can_read=can_read)
        self._offer = tools
        self._tools = [ToolItem(spec, token_counter.tool(spec) if reads_tools else 0) for spec in tools.specs]

    def sections(self) -> list[SectionInput[Turns]]:
        """The sections of the prompt, each with all items that it may have."""
        content, counter, offer = self._content, self._counter, self._offer
        ranked = sorted(self._tools, key=lambda item: offer.ranks.get(item.spec.name, 0))
        turns: list[list[ContextItem[Turns]]] = [[*self._written(), self._question], self._steps]
        turns += [[message] for message in self._older]
        return [
            SectionInput(name="instructions", groups=[self._instructions()]),
            SectionInput(
                name="folderFiles",
                groups=[self._folder_files],
                max_tokens=MAX_FOLDER_TOKENS,
                left_out=tuple(self._unread_of_folder()),
            ),
            SectionInput(name="memories", groups=[memory_items(content.memories, counter)]),
            SectionInput(name="summary", groups=[summary_items(self._summary, counter)]),
            SectionInput(name="turns", groups=turns, left_out=tuple(self._summarised())),
            SectionInput(name="files", groups=[self._files], left_out=tuple(self._unread())),
            SectionInput(name="tools", groups=[ranked], max_tokens=offer.max_tokens, left_out=tuple(self._unrelated())),
        ]

    def assemble(self, filled: Mapping[SectionName, FilledSection[Turns]], limit: int) -> FittedPrompt:
        """The prompt with the chosen items, in the order of the conversation."""
        content = self._content
        forms = {id(item): form for section in filled.values() for item, form in section.chosen}
        kept = [item for item in reversed(self._older) if id(item) in forms]
        steps = [item for item in reversed(self._steps) if id(item) in forms]
        told = {item.message.id for item in (*kept, self._question)}
        files = [item for item in self._files if id(item) in forms and item.key[0] in told]
        data = {item.key: item.data(forms[id(item)]) for item in files}
        return FittedPrompt(
            prompt=Prompt(
                system=self._system,
                turns=(
                    *folder_turns(content.folder_files, filled["folderFiles"].contents),
                    *memory_turns(filled["memories"].contents),
                    *(turn for turns in filled["summary"].contents for turn in turns),
                    *(turn for item in (*kept, self._question) for turn in item.turns(forms[id(item)], data)),
                    *(turn for item in steps for turn in forms[id(item)].content),
                    *self._ending(),
                ),
                tools=tuple(item.spec for item in self._tools if id(item) in forms),
                partial_answer=content.progress.pending_text,
            ),
            sections=[_report(section, files) for section in filled.values()],
            dropped=[item.message for item in reversed(self._older) if id(item) not in forms],
            tight=len(steps) < len(self._steps)
            or any(forms[id(item)] is not item.forms[0] for item in steps)
            or sum(forms[id(item)].tokens for item in steps) > TIGHT_SHARE * limit,
        )

    def _instructions(self) -> list[ContextItem[Turns]]:
        personal = self._counter.text(personal_text(self._content.personal))
        folder = self._counter.text(folder_text(self._content.folder))
        counts = {
            "system": max(0, self._counter.text(self._system) - personal - folder),
            "preferences": personal,
            "folder": folder,
            "instruction": self._counter.turns(self._ending()),
        }
        return [fixed_item(name, tokens) for name, tokens in counts.items() if tokens]

    def _ending(self) -> Turns:
        instruction = self._content.instruction
        return (PromptTurn(role="user", text=instruction),) if instruction else ()

    def _written(self) -> list[ContextItem[Turns]]:
        """The text of an interrupted answer, which the model continues."""
        tokens = self._counter.text(self._content.progress.pending_text)
        return [fixed_item("answer", tokens)] if tokens else []

    def _summarised(self) -> Iterator[LeftOut]:
        """The messages and steps that the summary covers."""
        if self._covered:
            newest, tokens = self._covered[-1], sum(map(message_size, self._covered))
            yield LeftOut(what=f"message:{newest.id}", tokens=tokens, why="summarised", count=len(self._covered))
        progress = self._content.progress
        steps = progress.steps[: len(progress.steps) - len(self._steps)]
        if steps:
            tokens = sum(map(step_size, steps))
            yield LeftOut(what=f"step:{steps[-1].step}", tokens=tokens, why="summarised", count=len(steps))

    def _unread(self) -> Iterator[LeftOut]:
        """The attached files whose contents were not read, because there are too many or they are too large."""
        read = {item.key for item in self._files}
        unread = [
            block.blob
            for message in (self._question.message, *(item.message for item in self._older))
            for block in message.content or ()
            if isinstance(block, FileBlock) and (message.id, block.blob.blob_id) not in read
        ]
        if unread:
            tokens = sum(blob.size for blob in unread) // BYTES_PER_TOKEN
            yield LeftOut(what=f"blob:{unread[0].blob_id}", tokens=tokens, why="unread", count=len(unread))

    def _unread_of_folder(self) -> Iterator[LeftOut]:
        """The files of the folder that only their names and sizes stand for, because they are too large."""
        unread = self._content.folder_files.unread
        if unread:
            tokens = sum(file.size for file in unread) // BYTES_PER_TOKEN
            yield LeftOut(what=f"blob:{unread[0].id}", tokens=tokens, why="unread", count=len(unread))

    def _unrelated(self) -> Iterator[LeftOut]:
        unrelated = self._offer.unrelated
        if unrelated:
            yield LeftOut(
                what="tools",
                tokens=sum(map(estimate_tool, unrelated)),
                why="unrelated",
                count=len(unrelated),
                by=self._offer.by,
            )


def _report(section: FilledSection[Turns], files: Sequence[FileItem]) -> ContextSection:
    """The report of a section. A file does not enter the prompt if its message does not."""
    report = section.report
    lost = [(item, form) for item, form in section.chosen if isinstance(item, FileItem) and item not in files]
    if not lost:
        return report
    size = sum(item.size for item, _ in lost)
    return msgspec.structs.replace(
        report,
        tokens=report.tokens - sum(form.tokens for _, form in lost),
        items=report.items - len(lost),
        left_out=(*report.left_out, LeftOut(what=lost[0][0].reference, tokens=size, why="limit", count=len(lost))),
    )
