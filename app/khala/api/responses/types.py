"""Request bodies of the Responses API."""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from khala.api.openai.types import JsonObject
from khala.domain.generation import EndUser, Metadata, ReasoningEffort, Temperature, TopLogprobs, TopP

MAX_INPUT_ITEMS = 1000
MAX_ADDED_ITEMS = 20
"""Items that one request adds to a conversation."""


class InputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_text"):
    """Text of the user."""

    text: str


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """Text of the model, as in the output of a response."""

    text: str


class PlainText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """Text."""

    text: str


class Refusal(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="refusal"):
    """A refusal of the model. It is treated as text."""

    refusal: str


class InputImage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_image"):
    """An image: a data URL, or a public web address."""

    image_url: str | None = None
    file_id: str | None = None


class InputFile(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_file"):
    """A file, as a data URL."""

    file_data: str | None = None
    filename: str | None = None
    file_url: str | None = None
    file_id: str | None = None


InputPart: TypeAlias = InputText | OutputText | PlainText | Refusal | InputImage | InputFile
ItemContent: TypeAlias = str | list[InputPart]


class InputMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message. An item without a type is one."""

    role: Literal["user", "assistant", "system", "developer"]
    content: ItemContent


class FunctionCallItem(msgspec.Struct, frozen=True, kw_only=True):
    """A call of one of the client's functions."""

    call_id: str
    name: str
    arguments: str = ""


class FunctionCallOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call of one of the client's functions."""

    call_id: str
    output: ItemContent


class McpCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the server executed, and its result."""

    id: str
    name: str
    server_label: str
    arguments: str = ""
    output: str | None = None
    error: Any = None


class CodeLogs(msgspec.Struct, frozen=True, kw_only=True):
    """An output of a program. Images have no logs."""

    logs: str = ""


class CodeInterpreterCall(msgspec.Struct, frozen=True, kw_only=True):
    """A program that the server ran, and its output."""

    id: str
    code: str | None = None
    outputs: list[CodeLogs] | None = None


class ResponseFunction(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """A tool that the client executes."""

    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class CodeInterpreterTool(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="code_interpreter"):
    """The server's sandbox: its tool `run_code`. The container is always a new one."""

    container: str | JsonObject | None = None


class McpToolNames(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of an MCP server that the model may call."""

    tool_names: list[str] | None = None


class McpServerTool(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp"):
    """Tools of an MCP server of the operator, which `server_label` names."""

    server_label: str
    server_description: str | None = None
    allowed_tools: list[str] | McpToolNames | None = None
    require_approval: Any = None
    server_url: str | None = None
    connector_id: str | None = None
    authorization: str | None = None
    headers: Any = None


ResponseTool: TypeAlias = ResponseFunction | CodeInterpreterTool | McpServerTool


class ChosenFunction(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """The function that the model must call, or may call as one of several."""

    name: str


class ChosenSubset(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="allowed_tools"):
    """Some of the functions, and whether the model must call one of them."""

    mode: Literal["auto", "required"]
    tools: list[ChosenFunction]


ChosenTool: TypeAlias = Literal["none", "auto", "required"] | ChosenFunction | ChosenSubset


class PlainTextFormat(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """Text in any form."""


class JsonObjectText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="json_object"):
    """A JSON object."""


class JsonSchemaText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="json_schema"):
    """A JSON value that fits a JSON Schema."""

    name: str
    schema: JsonObject
    description: str | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the answer's text."""

    format: PlainTextFormat | JsonObjectText | JsonSchemaText | None = None


class ReasoningOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How much the model reasons."""

    effort: ReasoningEffort | None = None


class ConversationRef(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation."""

    id: str


class ResponseBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a request for a response. Fields that are not listed here are ignored and reported as such."""

    model: str = "khala"
    input: str | Annotated[list[JsonObject], msgspec.Meta(max_length=MAX_INPUT_ITEMS)]
    instructions: str | None = None
    stream: bool | None = None
    background: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationRef | None = None
    tools: list[JsonObject] | None = None
    tool_choice: ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, msgspec.Meta(ge=0, le=1000)] | None = None
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_logprobs: TopLogprobs | None = None
    include: list[str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    user: EndUser | None = None
    metadata: Metadata | None = None
    prompt: Any = None


class NewConversation(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a request for a conversation."""

    items: Annotated[list[JsonObject], msgspec.Meta(max_length=MAX_ADDED_ITEMS)] | None = None
    metadata: Metadata | None = None


class ConversationChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata that replaces that of a conversation."""

    metadata: Metadata | None


class NewItems(msgspec.Struct, frozen=True, kw_only=True):
    """Items to add at the end of a conversation."""

    items: Annotated[list[JsonObject], msgspec.Meta(min_length=1, max_length=MAX_ADDED_ITEMS)]
