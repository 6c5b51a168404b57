"""Request and response bodies of OpenAI's protocol."""

from typing import Any, Literal, TypeAlias

import msgspec

JsonObject: TypeAlias = dict[str, Any]


class TextPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """Text of a message."""

    text: str


class RefusalPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="refusal"):
    """A refusal of an assistant. It is treated as text."""

    refusal: str


class ImageUrl(msgspec.Struct, frozen=True, kw_only=True):
    """The URL of an image. Only data URLs are accepted."""

    url: str


class ImagePart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="image_url"):
    """An image of a message."""

    image_url: ImageUrl


class FileData(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a file, as a data URL."""

    file_data: str | None = None
    filename: str | None = None


class FilePart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="file"):
    """A file of a message."""

    file: FileData


class AudioPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_audio"):
    """Audio, which is not supported."""


MessageContentPart: TypeAlias = TextPart | RefusalPart | ImagePart | FilePart | AudioPart
MessageContent: TypeAlias = str | list[MessageContentPart] | None


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """The name of the called function, and its arguments as JSON text."""

    name: str
    arguments: str = ""


class MessageToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call in an assistant's message."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class SystemMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="system"):
    """Instructions."""

    content: MessageContent


class DeveloperMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="developer"):
    """Instructions, under OpenAI's newer name."""

    content: MessageContent


class UserMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="user"):
    """A message of a user."""

    content: MessageContent


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="assistant"):
    """An answer of the model: text, tool calls or both."""

    content: MessageContent = None
    tool_calls: list[MessageToolCall] | None = None


class ToolMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="tool"):
    """The result of a tool call."""

    content: MessageContent
    tool_call_id: str


RequestMessage: TypeAlias = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class FunctionDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the client executes."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the client executes."""

    function: FunctionDefinition
    type: Literal["function"] = "function"


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a streamed response."""

    include_usage: bool = False


class CompletionBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a completion request. Fields that are not listed here are ignored and reported as such."""

    model: str
    messages: list[RequestMessage]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[FunctionTool] | None = None
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
    def max_output_tokens(self) -> int | None:
        """The maximum length of the answer, in tokens."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that a request may name."""

    id: str
    created: int
    owned_by: str
    object: str = "model"


class ListedModels(msgspec.Struct, frozen=True, kw_only=True):
    """The models that a request may name."""

    data: list[ListedModel]
    object: str = "list"


class EmbeddingBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an embedding request. Fields that are not listed here are ignored."""

    model: str
    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class EmbeddingItem(msgspec.Struct, frozen=True, kw_only=True):
    """The vector of one text: numbers, or their 32-bit floats in base64."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors, in the order of the texts."""

    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage
    object: str = "list"


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """An error. `param` is the path of the value in the request that caused it."""

    message: str
    type: str
    code: str
    param: str | None = None


class ErrorResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an error response."""

    error: ErrorBody
