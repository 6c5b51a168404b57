"""Converts the input items of a request for a response to messages of a completion request, and leading results."""

from collections.abc import Sequence
from typing import Any

import msgspec

from khala.api.openai.history import MAX_ID_CHARACTERS, shorten
from khala.api.openai.types import (
    AssistantMessage,
    CalledFunction,
    DeveloperMessage,
    FileData,
    FilePart,
    ImagePart,
    ImageUrl,
    JsonObject,
    MessageContent,
    MessageContentPart,
    MessageToolCall,
    RefusalPart,
    RequestMessage,
    SystemMessage,
    TextPart,
    ToolMessage,
    UserMessage,
)
from khala.api.responses.types import (
    CodeInterpreterCall,
    FunctionCallItem,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputMessage,
    InputPart,
    InputText,
    ItemContent,
    McpCall,
    OutputText,
    PlainText,
    Refusal,
)
from khala.api.validation import check_json
from khala.domain.errors import InvalidInput
from khala.domain.tools import SEPARATOR

RUN_CODE = "run_code"
"""The tool of the server that is OpenAI's `code_interpreter`."""
KINDS: dict[str, type[msgspec.Struct]] = {
    "message": InputMessage, "function_call": FunctionCallItem, "function_call_output": FunctionCallOutput,
    "mcp_call": McpCall, "code_interpreter_call": CodeInterpreterCall,
}  # fmt: skip
WITHOUT_CONTENT = ("reasoning", "mcp_list_tools")
"""Types of items of an output that say nothing to the model."""
ROLES: dict[str, type[UserMessage | AssistantMessage | SystemMessage | DeveloperMessage]] = {
    "user": UserMessage, "assistant": AssistantMessage, "system": SystemMessage, "developer": DeveloperMessage,
}  # fmt: skip


class ConvertedInput(msgspec.Struct, frozen=True, kw_only=True):
    """The input: results of calls of the response that it continues, by call id, and then messages with their paths."""

    results: dict[str, str]
    messages: Sequence[RequestMessage]
    paths: Sequence[str]


def convert_input(
    given: str | Sequence[JsonObject], open_calls: Sequence[str] = (), *, name: str = "input"
) -> ConvertedInput:
    """Return the input, which is this field of the request.

    `open_calls` are the calls of the continued response whose results it has to begin with.

    Raises `InvalidInput` with the path of the item that does not fit.
    """
    items: Sequence[JsonObject] = [{"role": "user", "content": given}] if isinstance(given, str) else given
    results: dict[str, str] = {}
    messages: list[RequestMessage] = []
    paths: list[str] = []
    for index, item in enumerate(items):
        path = name if isinstance(given, str) else f"{name}[{index}]"
        parsed = _parse(item, path)
        if isinstance(parsed, FunctionCallOutput) and not messages and parsed.call_id in open_calls:
            results[parsed.call_id] = _plain_text(parsed.output, path)
            continue
        for message in [] if parsed is None else _messages(parsed, path):
            if _joins(messages, message):
                messages[-1] = _joined(messages[-1], message)
            else:
                messages.append(message)
                paths.append(path)
    missing = next((call for call in open_calls if call not in results), None)
    if missing is not None:
        raise InvalidInput(f"No tool output was found for the function call {shorten(missing, 60)}.", path=name)
    return ConvertedInput(results=results, messages=messages, paths=paths)


def _parse(item: JsonObject, path: str) -> Any:
    kind = item.get("type") or "message"
    if kind in WITHOUT_CONTENT:
        return None
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidInput(f"Items of type {shorten(str(kind), 60)} are not supported.", path=f"{path}.type")
    check_json(item, path)
    try:
        return msgspec.convert(item, KINDS[kind])
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        raise InvalidInput(f"{message.rstrip('.')}.", path=path + where.rstrip("`")) from error


def _messages(parsed: Any, path: str) -> list[RequestMessage]:
    match parsed:
        case InputMessage():
            return [ROLES[parsed.role](content=_content(parsed.content, f"{path}.content"))]
        case FunctionCallItem():
            return [_call(parsed.call_id, parsed.name, parsed.arguments)]
        case FunctionCallOutput():
            return [ToolMessage(tool_call_id=parsed.call_id, content=_plain_text(parsed.output, path))]
        case McpCall():
            name = f"{parsed.server_label}{SEPARATOR}{parsed.name}"
            output = parsed.output if parsed.error is None else msgspec.json.encode(parsed.error).decode()
            return _ended_call(parsed.id, name, parsed.arguments, output or "")
        case CodeInterpreterCall():
            arguments = msgspec.json.encode({"code": parsed.code or ""}).decode()
            logs = "\n".join(output.logs for output in parsed.outputs or [])
            return _ended_call(parsed.id, RUN_CODE, arguments, logs)
        case _:
            raise InvalidInput("This item is not supported.", path=path)


def _ended_call(item_id: str, name: str, arguments: str, output: str) -> list[RequestMessage]:
    call_id = item_id[:MAX_ID_CHARACTERS]
    return [_call(call_id, name, arguments), ToolMessage(tool_call_id=call_id, content=output)]


def _call(call_id: str, name: str, arguments: str) -> AssistantMessage:
    return AssistantMessage(
        tool_calls=[MessageToolCall(id=call_id, function=CalledFunction(name=name, arguments=arguments))]
    )


def _joins(messages: Sequence[RequestMessage], message: RequestMessage) -> bool:
    """Whether a call belongs to the round of calls before it."""
    last = messages[-1] if messages else None
    return (
        isinstance(last, AssistantMessage)
        and isinstance(message, AssistantMessage)
        and bool(last.tool_calls and message.tool_calls)
    )


def _joined(last: RequestMessage, message: RequestMessage) -> RequestMessage:
    assert isinstance(last, AssistantMessage)
    assert isinstance(message, AssistantMessage)
    return AssistantMessage(content=last.content, tool_calls=[*(last.tool_calls or []), *(message.tool_calls or [])])


def _content(content: ItemContent, path: str) -> MessageContent:
    if isinstance(content, str):
        return content
    return [_part(part, f"{path}[{index}]") for index, part in enumerate(content)]


def _part(part: InputPart, path: str) -> MessageContentPart:
    match part:
        case InputText(text=text) | OutputText(text=text) | PlainText(text=text):
            return TextPart(text=text)
        case Refusal(refusal=refusal):
            return RefusalPart(refusal=refusal)
        case InputImage(image_url=str(url)):
            return ImagePart(image_url=ImageUrl(url=url))
        case InputFile(file_data=str(data), filename=name):
            return FilePart(file=FileData(file_data=data, filename=name))
        case InputImage() | InputFile():
            raise InvalidInput("Send a file as a data URL, or an image as a web address.", path=path)


def _plain_text(content: ItemContent, path: str) -> str:
    if isinstance(content, str):
        return content
    texts = [part.text for part in content if isinstance(part, InputText | OutputText | PlainText)]
    if len(texts) < len(content):
        raise InvalidInput("The result of a call may only have text.", path=f"{path}.output")
    return "".join(texts)
