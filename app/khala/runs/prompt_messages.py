"""Converts messages, and the steps of the run itself, into the turns of a prompt."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any
from uuid import UUID

import msgspec

from khala.domain.autopilot import CONTINUE_PROMPT
from khala.domain.chat import Message
from khala.domain.fold import (
    Block,
    Content,
    FileBlock,
    TextBlock,
    ToolBlock,
    text_of,
    without_replaced_text,
)
from khala.domain.generation import REPAIR_PROMPT
from khala.domain.parts import BlobRef
from khala.domain.redaction import redacted
from khala.domain.run_progress import RunStep, ToolCallProgress
from khala.models import prompt_files
from khala.models.port import PromptFile, PromptTurn, ToolOutcome, ToolUse

MAX_OUTPUT_CHARACTERS = 6000
"""Characters of a tool's output in the prompts of the run that called it. The rest is in the output's blob."""
MAX_EARLIER_CHARACTERS = 1000
"""Characters of an output, or of a text in arguments, of an earlier answer."""
MAX_CLIENT_OUTPUT_CHARACTERS = 1 << 20
"""Characters of the output of a client's own tool, which the model has not read yet."""
MAX_SHORT_CHARACTERS = 200
"""Characters of an output that is shortened to make room."""
MAX_SHORT_MESSAGE_CHARACTERS = 1000
"""Characters of an earlier message that is shortened to make room."""


def message_turns(
    message: Message, files: Mapping[UUID, bytes] | None = None, *, in_full: bool = False
) -> list[PromptTurn]:
    """The turns of a message of the history. `files` are contents of attached files; other files are mentioned.

    With `in_full`, outputs and arguments of an answer are neither shortened nor redacted, because the client has just
    executed the tools.
    """
    content = message.content or ()
    if message.role == "assistant":
        return list(_answer_turns(content, in_full=in_full))
    attached = [block.blob for block in content if isinstance(block, FileBlock)]
    read = tuple(_file(blob, files[blob.blob_id]) for blob in attached if files and blob.blob_id in files)
    missing = [_mention(blob) for blob in attached if not files or blob.blob_id not in files]
    text = "\n".join(filter(None, (text_of(content), *missing)))
    return [PromptTurn(role="user", text=text, files=read)] if text or read else []


def step_turns(steps: Sequence[RunStep], *, max_characters: Callable[[RunStep], int]) -> Iterator[PromptTurn]:
    """The turns of the run's own steps. `max_characters` bounds each output and argument of a step."""
    for step in steps:
        if not step.calls:
            yield PromptTurn(role="assistant", text=step.text)
            repair = REPAIR_PROMPT.format(mismatches=step.mismatches)
            yield PromptTurn(role="user", text=repair if step.mismatches else CONTINUE_PROMPT)
            continue
        limit = max_characters(step)
        yield PromptTurn(role="assistant", text=step.text, uses=tuple(_call_use(call, limit) for call in step.calls))
        yield PromptTurn(role="tool", outcomes=tuple(_call_outcome(call, limit) for call in step.calls))


def shortened_turns(turns: Sequence[PromptTurn]) -> list[PromptTurn]:
    """The turns of an earlier message with shortened texts, arguments and outputs."""
    return [
        msgspec.structs.replace(
            turn,
            text=shorten(turn.text, MAX_SHORT_MESSAGE_CHARACTERS),
            uses=tuple(msgspec.structs.replace(use, args=_map_texts(use.args, _short)) for use in turn.uses),
            outcomes=tuple(msgspec.structs.replace(outcome, text=_short(outcome.text)) for outcome in turn.outcomes),
        )
        for turn in turns
    ]


def _short(text: str) -> str:
    return shorten(text, MAX_SHORT_CHARACTERS)


def attached_files(message: Message, files: Mapping[UUID, bytes]) -> list[tuple[UUID, PromptFile]]:
    """The files of a user's message whose contents were read, by blob id."""
    if message.role == "assistant":
        return []
    blobs = [block.blob for block in message.content or () if isinstance(block, FileBlock)]
    return [(blob.blob_id, _file(blob, files[blob.blob_id])) for blob in blobs if blob.blob_id in files]


def turn_texts(turn: PromptTurn) -> Iterator[str]:
    """All texts of a turn, with its tool calls, their outcomes and its files."""
    yield turn.text
    for use in turn.uses:
        yield use.name + msgspec.json.encode(use.args).decode()
    for outcome in turn.outcomes:
        yield outcome.text
    for file in turn.files:
        yield prompt_files.decode_text(file) or ""


def output_text(output: Any, blob: BlobRef | None, summary: str, *, max_characters: int) -> str:
    """A tool's output as text. Of a long output only the beginning, with a reference to its blob."""
    if blob is not None:
        shown = shorten(blob.preview, max_characters)
        rest = (
            f"The whole output ({blob.size:,} bytes, {blob.media_type}) is the blob {blob.blob_id}; read_blob reads it."
        )
        return f"{shown}\n\n[{rest}]" if shown else f"[{rest}]"
    if output is None:
        return summary
    return shorten(output if isinstance(output, str) else msgspec.json.encode(output).decode(), max_characters)


def shorten(text: str, max_characters: int) -> str:
    """The text. Of a long text only the beginning, with the number of characters left out."""
    left_out = len(text) - max_characters
    return text if left_out <= 0 else f"{text[:max_characters]}\n[… {left_out:,} characters left out]"


def _answer_turns(content: Content, *, in_full: bool) -> Iterator[PromptTurn]:
    """The turns of an earlier answer: its text, its tool calls, and their outcomes.

    Text that did not fit the requested format, and was replaced, is left out.
    """
    text = ""
    for step, blocks in groupby(without_replaced_text(content), key=_step_number):
        if step is None:
            text += "".join(map(_answer_text, blocks))
            continue
        tools = [block for block in blocks if isinstance(block, ToolBlock)]
        yield PromptTurn(role="assistant", text=text, uses=tuple(map(_full_use if in_full else _short_use, tools)))
        yield PromptTurn(role="tool", outcomes=tuple(map(_full_outcome if in_full else _short_outcome, tools)))
        text = ""
    if text:
        yield PromptTurn(role="assistant", text=text)


def _answer_text(block: Block) -> str:
    """The text of a block. A file of an appended answer is mentioned, on a line of its own."""
    match block:
        case TextBlock(text=text):
            return text
        case FileBlock(blob=blob):
            return f"\n{_mention(blob)}\n"
        case _:
            return ""


def _step_number(block: Block) -> int | None:
    return block.step if isinstance(block, ToolBlock) else None


def _full_use(block: ToolBlock) -> ToolUse:
    return ToolUse(id=block.tool_call_id, name=block.tool, args=_arguments(block.args, block.args_blob))


def _short_use(block: ToolBlock) -> ToolUse:
    args = _map_texts(
        _arguments(block.args, block.args_blob), lambda text: shorten(redacted(text), MAX_EARLIER_CHARACTERS)
    )
    return ToolUse(id=block.tool_call_id, name=block.tool, args=args)


def _full_outcome(block: ToolBlock) -> ToolOutcome:
    text = output_text(
        block.output, block.blob, block.summary or block.state, max_characters=MAX_CLIENT_OUTPUT_CHARACTERS
    )
    return ToolOutcome(id=block.tool_call_id, name=block.tool, text=text, ok=block.state == "completed")


def _short_outcome(block: ToolBlock) -> ToolOutcome:
    text = output_text(block.output, block.blob, block.summary or block.state, max_characters=MAX_EARLIER_CHARACTERS)
    ok = block.state == "completed"
    return ToolOutcome(id=block.tool_call_id, name=block.tool, text=redacted(text), ok=ok)


def _call_use(call: ToolCallProgress, max_characters: int) -> ToolUse:
    args = _arguments(call.args, call.args_blob)
    if max_characters < MAX_OUTPUT_CHARACTERS:
        args = _map_texts(args, lambda text: shorten(text, max_characters))
    return ToolUse(id=call.id, name=call.tool, args=args)


def _call_outcome(call: ToolCallProgress, max_characters: int) -> ToolOutcome:
    if call.result is None:
        return ToolOutcome(id=call.id, name=call.tool, text=call.state, ok=False)
    result = call.result
    text = output_text(result.output, result.blob, result.summary, max_characters=max_characters)
    return ToolOutcome(id=call.id, name=call.tool, text=text, ok=result.ok)


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The value, with `change` applied to each text in it."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _map_texts(item, change) for name, item in value.items()}
    return [_map_texts(item, change) for item in value] if isinstance(value, list) else value


def _arguments(args: dict[str, Any] | None, blob: BlobRef | None) -> dict[str, Any]:
    if args is not None:
        return args
    if blob is None:
        return {}
    return {"…": f"{blob.size:,} bytes of arguments, beginning with {blob.preview[:MAX_SHORT_CHARACTERS]}"}


def _file(blob: BlobRef, data: bytes) -> PromptFile:
    return PromptFile(name=blob.name or "file", media_type=blob.media_type, data=data)


def _mention(blob: BlobRef) -> str:
    return f"[Attached: {blob.name or 'file'}, {blob.media_type}, {blob.size:,} bytes; blob {blob.blob_id}]"
