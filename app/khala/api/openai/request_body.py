"""What a request for a chat completion says, and what of it is refused because to ignore it would be worse."""

from typing import Any, Literal, TypeAlias

import msgspec

from khala.api.validation import check_text
from khala.domain.errors import InvalidInput, PayloadTooLarge

MAX_COMPLETION_BODY_BYTES = 8 << 20
"""Bytes of a request; images in it are written out."""
MAX_TEXT_BYTES = 1 << 20
"""Bytes of a request without its files: what one other request may have, too."""
MAX_MESSAGES = 1000


class TextPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """Some of a message's text."""

    text: str


class RefusalPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="refusal"):
    """An assistant's refusal, which is text as well."""

    refusal: str


class ImageUrl(msgspec.Struct, frozen=True, kw_only=True):
    """Where an image is."""

    url: str


class ImagePart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="image_url"):
    """An image of a message."""

    image_url: ImageUrl


class FileData(msgspec.Struct, frozen=True, kw_only=True):
    """A file, written out."""

    file_data: str | None = None
    filename: str | None = None


class FilePart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="file"):
    """A file of a message."""

    file: FileData


class AudioPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_audio"):
    """Sound, which nobody here listens to."""


ContentPart: TypeAlias = TextPart | RefusalPart | ImagePart | FilePart | AudioPart
Content: TypeAlias = str | list[ContentPart] | None


class Called(msgspec.Struct, frozen=True, kw_only=True):
    """The function that is called; `arguments` are JSON."""

    name: str
    arguments: str = ""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call in an assistant's message."""

    id: str
    function: Called
    type: Literal["function"] = "function"


class SystemMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="system"):
    """Instructions."""

    content: Content


class DeveloperMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="developer"):
    """Instructions, as they are called now."""

    content: Content


class UserMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="user"):
    """Somebody speaks."""

    content: Content


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="assistant"):
    """The model spoke, or called."""

    content: Content = None
    tool_calls: list[ToolCall] | None = None


class ToolMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="tool"):
    """What a call has come to."""

    content: Content
    tool_call_id: str


Message: TypeAlias = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A function of the caller's."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of the caller's."""

    function: Function
    type: Literal["function"] = "function"


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the stream shall be."""

    include_usage: bool = False


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A request. What is not named here is ignored."""

    model: str
    messages: list[Message]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[Tool] | None = None
    tool_choice: Any = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_steps: Any = None
    n: int | None = None
    stop: Any = None
    logprobs: bool | None = None
    response_format: Any = None
    modalities: list[str] | None = None
    functions: Any = None
    function_call: Any = None

    @property
    def most_tokens(self) -> int | None:
        """The most that the answer may have, in tokens."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


decoder = msgspec.json.Decoder(Completion)


def read(body: bytes) -> Completion:
    """The request. Raises `InvalidInput`, and `PayloadTooLarge` for one whose words are too many."""
    try:
        asked = decoder.decode(body)
    except msgspec.DecodeError as error:
        message, _, place = str(error).partition(" - at `$")
        raise InvalidInput(f"{message}.", path=place.rstrip("`").removeprefix(".")) from error
    _refuse(asked)
    if len(body) - sum(map(_files, asked.messages)) > MAX_TEXT_BYTES:
        raise PayloadTooLarge(f"A request has at most {MAX_TEXT_BYTES:,} bytes besides its files.")
    return asked


def text_of(content: Content, path: str) -> str:
    """The text of a message that can't have anything else. Raises `InvalidInput`."""
    if content is None or isinstance(content, str):
        return check_text(content or "", path)
    said = []
    for part in content:
        match part:
            case TextPart():
                said.append(part.text)
            case RefusalPart():
                said.append(part.refusal)
            case _:
                raise InvalidInput("Only a user's message may have files.", path=path)
    return check_text("".join(said), path)


def _refuse(asked: Completion) -> None:
    """Raise for what would change the answer's meaning if it were ignored."""
    kind = asked.response_format.get("type") if isinstance(asked.response_format, dict) else asked.response_format
    refused = {
        "n": (asked.n not in (None, 1), "There is one choice; n must be 1."),
        "response_format": (kind not in (None, "text"), "Only response_format text is supported."),
        "stop": (bool(asked.stop), "Stop sequences are not supported."),
        "logprobs": (bool(asked.logprobs), "Log probabilities are not supported."),
        "modalities": (asked.modalities not in (None, [], ["text"]), "Only text is supported."),
        "functions": (bool(asked.functions), "Send functions as tools."),
        "function_call": (asked.function_call not in (None, "auto"), "Send functions as tools."),
        "tool_choice": (asked.tool_choice not in (None, "auto", "none"), "tool_choice may be auto or none."),
        "max_tokens": (asked.most_tokens is not None and asked.most_tokens < 1, "At least one token."),
        "messages": (not 1 <= len(asked.messages) <= MAX_MESSAGES, f"From 1 to {MAX_MESSAGES:,} messages."),
    }
    for name, (so, why) in refused.items():
        if so:
            raise InvalidInput(why, path=name)


def _files(message: Message) -> int:
    """Characters of a message that are its files."""
    if not isinstance(message, UserMessage) or not isinstance(message.content, list):
        return 0
    return sum(len(file_of(part)[0]) for part in message.content if isinstance(part, ImagePart | FilePart))


def file_of(part: ImagePart | FilePart) -> tuple[str, str | None]:
    """Where the file is, and what it is called."""
    if isinstance(part, ImagePart):
        return part.image_url.url, None
    return part.file.file_data or "", part.file.filename
