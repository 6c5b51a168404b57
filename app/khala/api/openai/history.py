"""The messages of a request as a thread's history: what was said before, and the question at its end."""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from khala.api.openai.request_body import (
    AssistantMessage,
    DeveloperMessage,
    FilePart,
    ImagePart,
    Message,
    RefusalPart,
    SystemMessage,
    TextPart,
    ToolMessage,
    UserMessage,
    file_of,
    text_of,
)
from khala.api.validation import check_json, check_text
from khala.domain.errors import InvalidInput
from khala.domain.fold import Block, TextBlock, ToolBlock
from khala.models import tool_arguments

DATA_URL = re.compile(r"data:([A-Za-z0-9][\w.+-]*/[A-Za-z0-9][\w.+-]*)?((?:;[\w-]+=[^;,]*)*);base64,", re.ASCII)
MOST_SUMMARY = 120
TITLE = 80
MOST_ID = 100
MOST_FILES = 10
"""Files of one message."""

Place: TypeAlias = int


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A file that came with a message; `claimed` is what it is said to be."""

    data: bytes
    claimed: str
    name: str | None
    path: str


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A user's words."""

    text: str
    files: tuple[File, ...] = ()


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of the model's with all rounds of tools in it."""

    blocks: tuple[Block, ...]


Turn: TypeAlias = Said | Answered


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation. What is to be answered is its last turn: a user's words, or an answer whose tools have come back.

    `results` are what the tools at the end came to, by the id of the call.
    """

    system: str
    turns: Sequence[Turn]
    results: Mapping[str, str]

    @property
    def title(self) -> str | None:
        """What a thread of it is called: the beginning of the user's first words."""
        first = next((turn.text for turn in self.turns if isinstance(turn, Said) and turn.text.strip()), "")
        return shortened(first, TITLE) or None


def read(messages: Sequence[Message]) -> History:
    """The history. Raises `InvalidInput` where it is none, naming the place."""
    system = [
        text_of(one.content, f"messages[{place}].content")
        for place, one in enumerate(messages)
        if isinstance(one, SystemMessage | DeveloperMessage)
    ]
    spoken = [
        (place, one) for place, one in enumerate(messages) if not isinstance(one, SystemMessage | DeveloperMessage)
    ]
    if not spoken or isinstance(spoken[-1][1], AssistantMessage):
        raise InvalidInput("The last message must be a user's, or what a tool came to.", path="messages")
    draft = _Draft()
    for place, message in spoken:
        draft.take(f"messages[{place}]", message)
    draft.close()
    return History(system="\n\n".join(filter(None, system)), turns=draft.turns, results=_trailing(spoken))


def shortened(text: str, most: int) -> str:
    """The text's beginning, on one line."""
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _trailing(spoken: Sequence[tuple[Place, Message]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for place, message in reversed(spoken):
        if not isinstance(message, ToolMessage):
            break
        found[message.tool_call_id] = text_of(message.content, f"messages[{place}].content")
    return found


class _Draft:
    """Turns that are being put together."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._blocks: list[Block] = []
        self._waiting: dict[str, int] = {}
        self._named: set[str] = set()
        self._step = 0

    def take(self, path: str, message: Message) -> None:
        """The next message. Between a call and what it came to there is nothing else."""
        match message:
            case ToolMessage():
                self._settle(path, message)
            case UserMessage():
                self.close()
                self.turns.append(_said(path, message))
            case AssistantMessage():
                self._answered()
                self._speak(path, message)
            case _:
                raise InvalidInput("Instructions are no turn.", path=path)

    def close(self) -> None:
        """The answer that was put together is whole."""
        self._answered()
        if self._blocks:
            self.turns.append(Answered(blocks=tuple(self._blocks)))
        self._blocks, self._named, self._step = [], set(), 0

    def _answered(self) -> None:
        if self._waiting:
            missing = next(iter(self._waiting))
            raise InvalidInput(f"The call {shortened(missing, 60)} has no tool message after it.", path="messages")

    def _speak(self, path: str, message: AssistantMessage) -> None:
        if text := text_of(message.content, f"{path}.content"):
            self._blocks.append(TextBlock(text=text))
        if not message.tool_calls:
            return
        self._step += 1
        for place, call in enumerate(message.tool_calls):
            here = f"{path}.tool_calls[{place}]"
            if not 0 < len(call.id) <= MOST_ID or call.id in self._waiting:
                raise InvalidInput(f"Each call has an id of its own, of at most {MOST_ID} characters.", path=here)
            self._waiting[check_text(call.id, here)] = len(self._blocks)
            self._blocks.append(
                ToolBlock(
                    tool_call_id=self._name(call.id),
                    tool=check_text(call.function.name, here)[:MOST_ID],
                    state="queued",
                    step=self._step,
                    args=_args(call.function.arguments, here),
                )
            )

    def _name(self, call_id: str) -> str:
        """The call's id, or another one where a round before had the same: not every model counts on."""
        name = call_id if call_id not in self._named else f"{call_id}-{len(self._named)}"
        self._named.add(name)
        return name

    def _settle(self, path: str, message: ToolMessage) -> None:
        place = self._waiting.pop(message.tool_call_id, None)
        if place is None:
            raise InvalidInput("No call before this has this id.", path=f"{path}.tool_call_id")
        block = self._blocks[place]
        assert isinstance(block, ToolBlock)
        self._blocks[place] = settled(block, text_of(message.content, f"{path}.content"))


def settled(block: ToolBlock, output: str) -> ToolBlock:
    """The call with what it came to."""
    summary = shortened(output, MOST_SUMMARY)
    return msgspec.structs.replace(block, state="completed", output=output, summary=summary, duration_ms=None)


def _args(text: str, path: str) -> dict[str, Any]:
    """The arguments of an earlier call; a model that wrote none that can be read is told so."""
    args, problem = tool_arguments.read(text)
    check_json(args, path)
    return args if problem is None else {"…": check_text(text, path)}


def _said(path: str, message: UserMessage) -> Said:
    content = message.content
    if content is None or isinstance(content, str):
        return Said(text=check_text(content or "", f"{path}.content"))
    texts, files = [], []
    for place, part in enumerate(content):
        here = f"{path}.content[{place}]"
        match part:
            case TextPart():
                texts.append(check_text(part.text, here))
            case RefusalPart():
                texts.append(check_text(part.refusal, here))
            case ImagePart() | FilePart():
                files.append(_file(here, part))
            case _:
                raise InvalidInput("Sound is not supported.", path=here)
    if len(files) > MOST_FILES:
        raise InvalidInput(f"A message has at most {MOST_FILES} files.", path=f"{path}.content")
    return Said(text="\n".join(texts), files=tuple(files))


def _file(path: str, part: ImagePart | FilePart) -> File:
    url, name = file_of(part)
    if not url.startswith("data:"):
        raise InvalidInput(
            "Nothing is fetched from elsewhere: send the file itself, as data:image/png;base64,….", path=path
        )
    head = DATA_URL.match(url)
    if head is None:
        raise InvalidInput("A file is written as data:MEDIA-TYPE;base64,….", path=path)
    try:
        data = base64.b64decode(url[head.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"This is no base64: {error}.", path=path) from error
    if not data:
        raise InvalidInput("The file is empty.", path=path)
    return File(data=data, claimed=head[1] or "text/plain", name=name, path=path)
