"""Request and response bodies of OpenAI's protocol."""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from khala.domain.errors import LimitScope
from khala.domain.generation import (
    MAX_CHOSEN_TOOLS,
    MAX_STOPS,
    EndUser,
    Metadata,
    Penalty,
    ReasoningEffort,
    Seed,
    StopText,
    Temperature,
    TopLogprobs,
    TopP,
)

JsonObject: TypeAlias = dict[str, Any]
MAX_CHOICES = 8
"""Answers of one request."""


class TextPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """Text of a message."""

    text: str


class RefusalPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="refusal"):
    """A refusal of an assistant. It is treated as text."""

    refusal: str


class ImageUrl(msgspec.Struct, frozen=True, kw_only=True):
    """The URL of an image: a data URL, or a public web address."""

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
    strict: bool | None = None


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the client executes."""

    function: FunctionDefinition
    type: Literal["function"] = "function"


class FunctionName(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a function."""

    name: str


class NamedTool(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """The function that the model must call, or may call as one of several."""

    function: FunctionName


class ToolSubset(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the offered functions, and whether the model must call one of them."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], msgspec.Meta(min_length=1, max_length=MAX_CHOSEN_TOOLS)]


class AllowedTools(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="allowed_tools"):
    """The functions that the model may or must call."""

    allowed_tools: ToolSubset


ToolChoiceOption: TypeAlias = Literal["none", "auto", "required"] | NamedTool | AllowedTools


class TextFormat(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """An answer in any form."""


class JsonObjectFormat(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="json_object"):
    """An answer that is a JSON object."""


class JsonSchemaDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON Schema that an answer fits, and its name."""

    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="json_schema"):
    """An answer that fits a JSON Schema."""

    json_schema: JsonSchemaDefinition


AnswerFormat: TypeAlias = TextFormat | JsonObjectFormat | JsonSchemaFormat


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
    tool_choice: ToolChoiceOption | None = None
    parallel_tool_calls: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_steps: Any = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None
    stop: StopText | Annotated[list[StopText], msgspec.Meta(max_length=MAX_STOPS)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    seed: Seed | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    reasoning_effort: ReasoningEffort | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    user: EndUser | None = None
    metadata: Metadata | None = None
    response_format: AnswerFormat | None = None
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
    """An error. `param` is the path of the value in the request that caused it.

    With status 429, the other fields name the limit, as in a problem of the other APIs.
    """

    message: str
    type: str
    code: str
    param: str | None = None
    limit: str | msgspec.UnsetType = msgspec.UNSET
    scope: LimitScope | msgspec.UnsetType = msgspec.UNSET
    most: str | msgspec.UnsetType = msgspec.UNSET
    retry_after: int | msgspec.UnsetType = msgspec.field(name="retryAfter", default=msgspec.UNSET)


class ErrorResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an error response."""

    error: ErrorBody
