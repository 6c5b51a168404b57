"""Converts the messages of a completion request to the turns of a conversation."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from khala.api.blobs.attached_files import MAX_FILES, AttachedFile, decode_data_url
from khala.api.blobs.remote_files import RemoteFile
from khala.api.openai.request_body import file_of, text_of
from khala.api.openai.types import (
    AssistantMessage,
    DeveloperMessage,
    FilePart,
    ImagePart,
    RefusalPart,
    RequestMessage,
    SystemMessage,
    TextPart,
    ToolMessage,
    UserMessage,
)
from khala.api.validation import check_json, check_text
from khala.domain.errors import InvalidInput
from khala.domain.fold import Block, TextBlock, ToolBlock
from khala.domain.titles import plain_text
from khala.models import tool_arguments

MAX_SUMMARY_CHARACTERS = 120
MAX_TITLE_CHARACTERS = 80
MAX_ID_CHARACTERS = 100


class UserTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the user."""

    text: str
    files: tuple[AttachedFile | RemoteFile, ...] = ()


class AssistantTurn(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of the model with the tool calls of all its steps."""

    blocks: tuple[Block, ...]


HistoryTurn: TypeAlias = UserTurn | AssistantTurn
Instructions: TypeAlias = SystemMessage | DeveloperMessage


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation whose last turn is to be answered: a user's message, or an answer whose calls have results.

    `results` are the results of the last calls, by the id of the call.
    """

    system: str
    turns: Sequence[HistoryTurn]
    results: Mapping[str, str]

    @property
    def title(self) -> str | None:
        """The title of a thread with this history: the beginning of the user's first message."""
        first = next((turn.text for turn in self.turns if isinstance(turn, UserTurn) and turn.text.strip()), "")
        return shorten(plain_text(first), MAX_TITLE_CHARACTERS) or None


def read_history(messages: Sequence[RequestMessage], paths: Sequence[str] = ()) -> History:
    """Return the history. Raises `InvalidInput` with the path of the message that does not fit.

    `paths` are the paths of the messages in the request, by default those of `messages`.
    """
    paths = paths or [f"messages[{index}]" for index in range(len(messages))]
    list_path = paths[0].partition("[")[0] if paths else "messages"
    if not (dialog := [one for one in messages if not isinstance(one, Instructions)]) or isinstance(
        dialog[-1], AssistantMessage
    ):
        raise InvalidInput("The last message must be a user's, or the result of a tool.", path=list_path)
    return read_turns(messages, paths)


def read_turns(messages: Sequence[RequestMessage], paths: Sequence[str]) -> History:
    """As `read_history`, for messages that nobody is asked to answer."""
    list_path = paths[0].partition("[")[0] if paths else ""
    system = [
        text_of(message.content, f"{paths[index]}.content")
        for index, message in enumerate(messages)
        if isinstance(message, Instructions)
    ]
    dialog = [(index, message) for index, message in enumerate(messages) if not isinstance(message, Instructions)]
    builder = _TurnBuilder(list_path)
    for index, message in dialog:
        builder.add(paths[index], message)
    builder.close()
    return History(system="\n\n".join(filter(None, system)), turns=builder.turns, results=_trailing_results(dialog))


def shorten(text: str, max_characters: int) -> str:
    """Return the beginning of the text, on one line."""
    line = " ".join(text[: 4 * max_characters].split())
    return line if len(line) <= max_characters else line[: max_characters - 1] + "…"


def _trailing_results(dialog: Sequence[tuple[int, RequestMessage]]) -> dict[str, str]:
    results: dict[str, str] = {}
    for index, message in reversed(dialog):
        if not isinstance(message, ToolMessage):
            break
        results[message.tool_call_id] = text_of(message.content, f"messages[{index}].content")
    return results


class _TurnBuilder:
    """Groups messages into turns. `path` is that of the list of messages."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.turns: list[HistoryTurn] = []
        self._blocks: list[Block] = []
        self._open_calls: dict[str, int] = {}
        self._call_ids: set[str] = set()
        self._step = 0

    def add(self, path: str, message: RequestMessage) -> None:
        """Add the next message. Only the results of its calls may follow a message with calls."""
        match message:
            case ToolMessage():
                self._add_result(path, message)
            case UserMessage():
                self.close()
                self.turns.append(_user_turn(path, message))
            case AssistantMessage():
                self._require_results()
                self._add_answer(path, message)
            case _:
                raise InvalidInput("Instructions are not part of the dialog.", path=path)

    def close(self) -> None:
        """End the current answer."""
        self._require_results()
        if self._blocks:
            self.turns.append(AssistantTurn(blocks=tuple(self._blocks)))
        self._blocks, self._call_ids, self._step = [], set(), 0

    def _require_results(self) -> None:
        if self._open_calls:
            missing = next(iter(self._open_calls))
            raise InvalidInput(f"The call {shorten(missing, 60)} has no tool message after it.", path=self._path)

    def _add_answer(self, path: str, message: AssistantMessage) -> None:
        if text := text_of(message.content, f"{path}.content"):
            self._blocks.append(TextBlock(text=text))
        if not message.tool_calls:
            return
        self._step += 1
        for index, call in enumerate(message.tool_calls):
            call_path = f"{path}.tool_calls[{index}]"
            if not 0 < len(call.id) <= MAX_ID_CHARACTERS or call.id in self._open_calls:
                raise InvalidInput(
                    f"Each call needs a unique id of at most {MAX_ID_CHARACTERS} characters.", path=call_path
                )
            self._open_calls[check_text(call.id, call_path)] = len(self._blocks)
            self._blocks.append(
                ToolBlock(
                    tool_call_id=self._unique_id(call.id),
                    tool=check_text(call.function.name, call_path)[:MAX_ID_CHARACTERS],
                    state="queued",
                    step=self._step,
                    args=_args(call.function.arguments, call_path),
                )
            )

    def _unique_id(self, call_id: str) -> str:
        """Return the call's id, or a new one if an earlier step of the answer used it: some models reuse ids."""
        unique = call_id if call_id not in self._call_ids else f"{call_id}-{len(self._call_ids)}"
        self._call_ids.add(unique)
        return unique

    def _add_result(self, path: str, message: ToolMessage) -> None:
        index = self._open_calls.pop(message.tool_call_id, None)
        if index is None:
            raise InvalidInput("No earlier call has this id.", path=f"{path}.tool_call_id")
        block = self._blocks[index]
        assert isinstance(block, ToolBlock)
        self._blocks[index] = complete_call(block, text_of(message.content, f"{path}.content"))


def complete_call(block: ToolBlock, output: str) -> ToolBlock:
    """Return the call with its result."""
    summary = shorten(output, MAX_SUMMARY_CHARACTERS)
    return msgspec.structs.replace(block, state="completed", output=output, summary=summary, duration_ms=None)


def _args(text: str, path: str) -> dict[str, Any]:
    """Return the arguments of an earlier call. If they are not JSON, the model sees them as text."""
    args, problem = tool_arguments.decode(text)
    check_json(args, path)
    return args if problem is None else {"…": check_text(text, path)}


def _user_turn(path: str, message: UserMessage) -> UserTurn:
    content = message.content
    if content is None or isinstance(content, str):
        return UserTurn(text=check_text(content or "", f"{path}.content"))
    texts, files = [], []
    for index, part in enumerate(content):
        part_path = f"{path}.content[{index}]"
        match part:
            case TextPart():
                texts.append(check_text(part.text, part_path))
            case RefusalPart():
                texts.append(check_text(part.refusal, part_path))
            case ImagePart() | FilePart():
                files.append(_file(part_path, part))
            case _:
                raise InvalidInput("Audio is not supported.", path=part_path)
    if len(files) > MAX_FILES:
        raise InvalidInput(f"A message has at most {MAX_FILES} files.", path=f"{path}.content")
    return UserTurn(text="\n".join(texts), files=tuple(files))


def _file(path: str, part: ImagePart | FilePart) -> AttachedFile | RemoteFile:
    url, name = file_of(part)
    if isinstance(part, ImagePart) and url.startswith(("https://", "http://")):
        return RemoteFile(url=check_text(url, path), path=path)
    return decode_data_url(url, name=name, path=path)
