"""The prompt: instructions, as much of the newest history as the model takes, and what the answer has done so far."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any
from uuid import UUID

import msgspec

from khala.domain.autopilot import CONTINUE_PROMPT
from khala.domain.chat import Message
from khala.domain.fold import Block, CompactionBlock, Content, FileBlock, TextBlock, ToolBlock, text_of
from khala.domain.parts import BlobRef
from khala.domain.redaction import redacted
from khala.domain.run_progress import RunProgress, RunStep, ToolCallProgress
from khala.domain.tools import ToolSpec
from khala.models import prompt_files
from khala.models.port import File, ModelFailed, Outcome, Prompt, ToolUse, Turn
from khala.models.token_counter import Counter, estimate_tool

MOST_MESSAGES = 1000
"""Messages that are looked at for one prompt."""
TOKEN_BYTES = 16
"""Bytes that a token has at the most, near enough: what is read of the history for one prompt."""
TURN_TOKENS = 4
"""What a turn costs beyond its text."""
FILE_TOKENS = 1000
"""What an image or a document costs, about."""
OUTCOME = 6000
"""Characters of a tool's outcome that the model is told in the same answer; more of it is in its blob."""
EARLIER = 1000
"""Characters of what tools put out for an earlier answer."""
MOST_HANDED = 1 << 20
"""Characters of what somebody's own tools came to, which the model has not heard yet."""
SHORT = 200
"""Characters of an outcome that has to make room."""
KEPT_ROUNDS = 2
"""The newest rounds, whose outcomes are not shortened."""
TOOLS_SHARE = 0.4
"""The part of the limit that the description of tools may take."""
TIGHT = 0.5
"""The part of the limit over which what the answer has done is summarised."""
SUMMARY = "What was said and done before, in summary:\n\n"


class PromptInput(msgspec.Struct, kw_only=True):
    """All that a prompt can tell: messages up to the question, and what its answer has done so far.

    `files` are the contents of attached files, as far as they were read; `instruction` is a last word of ours.
    """

    history: Sequence[Message]
    progress: RunProgress
    files: Mapping[UUID, bytes] = {}
    instruction: str = ""


class FittedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt within its limit, and the messages that found no room in it, oldest first.

    `tight` says that what the answer itself has done takes most of the room, or more than there was.
    """

    prompt: Prompt
    dropped: Sequence[Message]
    tight: bool


class ModelTokenCounter:
    """Measures turns in tokens of one model."""

    def __init__(self, counter: Counter, model: str) -> None:
        self._counter = counter
        self._model = model

    def text(self, text: str) -> int:
        """What this text costs."""
        return self._counter.count(text, self._model).tokens + TURN_TOKENS if text else 0

    def turns(self, turns: Sequence[Turn]) -> int:
        """What these turns cost."""
        return sum(self.text("\n".join(texts(turn))) + FILE_TOKENS * _pictures(turn) for turn in turns)


def fit(
    conversation: PromptInput,
    *,
    system: str,
    tools: Sequence[ToolSpec],
    limit: int,
    token_counter: ModelTokenCounter,
    reads_tools: bool = True,
    tools_limit: float = math.inf,
) -> FittedPrompt:
    """The prompt in at most `limit` tokens: what doesn't fit are outcomes of rounds, then the oldest of all there is.

    Of more tools than a part of the limit can describe, or `tools_limit` tokens, the first are offered.

    Raises `ModelFailed` if the question alone, with what its answer has done, is too long.
    """
    progress = conversation.progress
    summary, messages = since_summary(conversation)
    ending = (Turn(role="user", text=conversation.instruction),) if conversation.instruction else ()
    fixed = token_counter.text(system) + token_counter.text(progress.said) + token_counter.turns((*summary, *ending))
    offered, taken = _affordable(tools, min(TOOLS_SHARE * limit, tools_limit)) if reads_tools else (tuple(tools), 0)
    room = limit - fixed - taken
    older = [(message, turns_of(message, conversation.files)) for message in messages[:-1]]
    question = _question(messages[-1], conversation.files, room, token_counter)
    room -= token_counter.turns(question)
    own, cut = _own(progress, room, token_counter)
    taken = token_counter.turns(own)
    room -= taken
    if room < 0:
        raise ModelFailed("context_exceeded", "This message is longer than the model can read.")
    kept = _newest(older, room, token_counter)
    turns = (turn for _, said in older[len(older) - kept :] for turn in said)
    return FittedPrompt(
        prompt=Prompt(
            system=system,
            turns=(*summary, *turns, *question, *own, *ending),
            tools=offered,
            said=progress.said,
        ),
        dropped=[message for message, _ in older[: len(older) - kept]],
        tight=cut or taken > TIGHT * limit,
    )


def instructed(system: str, history: Sequence[Message], *, asked: str = "") -> tuple[str, list[Message]]:
    """The instructions, then those that were asked for with the run, then the history's own; and what else was said."""
    told = [text_of(message.content or ()) for message in history if message.role == "system"]
    return "\n\n".join(filter(None, (system, asked, *told))), [one for one in history if one.role != "system"]


def turns_of(message: Message, files: Mapping[UUID, bytes] | None = None, *, whole: bool = False) -> list[Turn]:
    """What a message of the history was, as a model is told it; `whole` of one whose tools have only now come back."""
    content = message.content or ()
    if message.role == "assistant":
        return list(_answered(content, whole=whole))
    attached = [block.blob for block in content if isinstance(block, FileBlock)]
    read = tuple(_file(blob, files[blob.blob_id]) for blob in attached if files and blob.blob_id in files)
    missing = [_mention(blob) for blob in attached if not files or blob.blob_id not in files]
    text = "\n".join(filter(None, (text_of(content), *missing)))
    return [Turn(role="user", text=text, files=read)] if text or read else []


def own_turns(rounds: Sequence[RunStep], *, most: Callable[[RunStep], int]) -> Iterator[Turn]:
    """What the answer under way has said and done; `most` characters of each outcome and argument of a round."""
    for round_ in rounds:
        if not round_.calls:
            yield Turn(role="assistant", text=round_.text)
            yield Turn(role="user", text=CONTINUE_PROMPT)
            continue
        uses = tuple(_call(call, most(round_)) for call in round_.calls)
        yield Turn(role="assistant", text=round_.text, uses=uses)
        yield Turn(role="tool", outcomes=tuple(_outcome(call, most(round_)) for call in round_.calls))


def told(output: Any, blob: BlobRef | None, summary: str, *, most: int) -> str:
    """A tool's output as a model is told it: whole, or its beginning and where the rest is."""
    if blob is not None:
        shown = shortened(blob.preview, most)
        rest = (
            f"The whole output ({blob.size:,} bytes, {blob.media_type}) is the blob {blob.blob_id}; read_blob reads it."
        )
        return f"{shown}\n\n[{rest}]" if shown else f"[{rest}]"
    if output is None:
        return summary
    return shortened(output if isinstance(output, str) else msgspec.json.encode(output).decode(), most)


def shortened(text: str, most: int) -> str:
    """The text, or its beginning with a word about what was left out."""
    return text if len(text) <= most else f"{text[:most]}\n[… {len(text) - most:,} characters left out]"


def texts(turn: Turn) -> Iterator[str]:
    """All that a turn says, its uses of tools and their outcomes included."""
    yield turn.text
    for use in turn.uses:
        yield use.name + msgspec.json.encode(use.args).decode()
    for outcome in turn.outcomes:
        yield outcome.text
    for file in turn.files:
        yield prompt_files.text(file) or ""


def since_summary(conversation: PromptInput) -> tuple[tuple[Turn, ...], Sequence[Message]]:
    """The newest summary of older messages, if there is one, and the messages after those that it stands for."""
    messages = conversation.history
    found: tuple[str, UUID | None] | None = None
    for message in messages:
        for block in message.content or ():
            if isinstance(block, CompactionBlock) and block.message_id is not None:
                found = block.summary, block.message_id
    own = conversation.progress.compaction
    if own is not None:
        found = own.summary, own.message_id or (found[1] if found else None)
    if found is None:
        return (), messages
    summary, last = found
    place = next((index + 1 for index, message in enumerate(messages[:-1]) if message.id == last), 0)
    return (Turn(role="system", text=SUMMARY + summary),), messages[place:]


def unsummarised(progress: RunProgress) -> list[RunStep]:
    """The rounds of the answer under way that no summary stands for."""
    done = progress.compaction.step if progress.compaction else 0
    places = (place for place, round_ in enumerate(progress.rounds, 1) if 0 < round_.step <= done)
    return progress.rounds[max(places, default=0) :]


def _affordable(tools: Sequence[ToolSpec], limit: float) -> tuple[tuple[ToolSpec, ...], int]:
    """As many of the tools as so many tokens can describe, and what that costs."""
    taken = 0
    for place, tool in enumerate(tools):
        cost = estimate_tool(tool)
        if taken + cost > limit:
            return tuple(tools[:place]), taken
        taken += cost
    return tuple(tools), taken


def _own(progress: RunProgress, room: int, token_counter: ModelTokenCounter) -> tuple[list[Turn], bool]:
    """The turns of the answer under way, and whether they had to make room.

    What does is first the outcomes of all but the newest rounds, then those of the newest, then the oldest rounds.
    """
    rounds = unsummarised(progress)
    turns = list(own_turns(rounds, most=lambda _: OUTCOME))
    if token_counter.turns(turns) <= room:
        return turns, False
    newest = {id(round_) for round_ in rounds[-KEPT_ROUNDS:]}
    for most in (OUTCOME, EARLIER, SHORT):
        turns = list(own_turns(rounds, most=lambda one, most=most: most if id(one) in newest else SHORT))  # type: ignore[misc]
        if token_counter.turns(turns) <= room:
            return turns, True
    while len(rounds) > 1 and token_counter.turns(turns) > room:
        rounds = rounds[1:]
        turns = list(own_turns(rounds, most=lambda _: SHORT))
    return turns, True


def _question(message: Message, read: Mapping[UUID, bytes], room: int, token_counter: ModelTokenCounter) -> list[Turn]:
    """The message that is answered, with its files if there is room for them; else they are only mentioned."""
    turns = turns_of(message, read, whole=True)
    return turns if token_counter.turns(turns) <= room else turns_of(message, whole=True)


def _newest(older: Sequence[tuple[Message, list[Turn]]], room: int, token_counter: ModelTokenCounter) -> int:
    """How many of the newest messages fit."""
    kept = 0
    for _, turns in reversed(older):
        room -= token_counter.turns(turns)
        if room < 0:
            break
        kept += 1
    return kept


def _answered(content: Content, *, whole: bool) -> Iterator[Turn]:
    """An earlier answer: its text, and the tools that it called, with what they put out in short, or whole."""
    text = ""
    for step, blocks in groupby(content, key=_step):
        if step is None:
            text += "".join(block.text for block in blocks if isinstance(block, TextBlock))
            continue
        tools = [block for block in blocks if isinstance(block, ToolBlock)]
        yield Turn(role="assistant", text=text, uses=tuple(map(_use if whole else _earlier_use, tools)))
        yield Turn(role="tool", outcomes=tuple(map(_told if whole else _earlier, tools)))
        text = ""
    if text:
        yield Turn(role="assistant", text=text)


def _step(block: Block) -> int | None:
    return block.step if isinstance(block, ToolBlock) else None


def _earlier_use(block: ToolBlock) -> ToolUse:
    args = _brief(_args(block.args, block.args_blob), lambda text: shortened(redacted(text), EARLIER))
    return ToolUse(id=block.tool_call_id, name=block.tool, args=args)


def _brief(value: Any, tell: Callable[[str], str]) -> Any:
    """A value of a call's arguments with its texts as they are to be told."""
    if isinstance(value, str):
        return tell(value)
    if isinstance(value, dict):
        return {name: _brief(one, tell) for name, one in value.items()}
    return [_brief(one, tell) for one in value] if isinstance(value, list) else value


def _call(call: ToolCallProgress, most: int) -> ToolUse:
    args = _args(call.args, call.args_blob)
    told = args if most >= OUTCOME else _brief(args, lambda text: shortened(text, most))
    return ToolUse(id=call.id, name=call.tool, args=told)


def _use(block: ToolBlock) -> ToolUse:
    return ToolUse(id=block.tool_call_id, name=block.tool, args=_args(block.args, block.args_blob))


def _told(block: ToolBlock) -> Outcome:
    text = told(block.output, block.blob, block.summary or block.state, most=MOST_HANDED)
    return Outcome(id=block.tool_call_id, name=block.tool, text=text, ok=block.state == "completed")


def _earlier(block: ToolBlock) -> Outcome:
    text = told(block.output, block.blob, block.summary or block.state, most=EARLIER)
    ok = block.state == "completed"
    return Outcome(id=block.tool_call_id, name=block.tool, text=redacted(text), ok=ok)


def _outcome(call: ToolCallProgress, most: int) -> Outcome:
    if call.result is None:
        return Outcome(id=call.id, name=call.tool, text=call.state, ok=False)
    result = call.result
    return Outcome(
        id=call.id, name=call.tool, text=told(result.output, result.blob, result.summary, most=most), ok=result.ok
    )


def _args(args: dict[str, Any] | None, blob: BlobRef | None) -> dict[str, Any]:
    if args is not None:
        return args
    return {} if blob is None else {"…": f"{blob.size:,} bytes of arguments, beginning with {blob.preview[:SHORT]}"}


def _file(blob: BlobRef, data: bytes) -> File:
    return File(name=blob.name or "file", media_type=blob.media_type, data=data)


def _mention(blob: BlobRef) -> str:
    return f"[Attached: {blob.name or 'file'}, {blob.media_type}, {blob.size:,} bytes; blob {blob.blob_id}]"


def _pictures(turn: Turn) -> int:
    return sum(map(_is_picture, turn.files))


def _is_picture(file: File) -> bool:
    return prompt_files.sort(file) in ("image", "pdf")
