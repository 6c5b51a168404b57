"""Encodes a prompt as the body of a chat completion request."""

from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from khala.domain.generation import GenerationOptions, ResponseFormat
from khala.domain.tools import ToolSpec
from khala.models import prompt_files, prompt_order
from khala.models.port import Prompt, PromptFile, PromptTurn, ToolOutcome, ToolUse

SAMPLING = (
    "temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "reasoning_effort", "user",
)  # fmt: skip
"""Options with the same names in OpenAI's protocol."""


class ChatQuirks(msgspec.Struct, frozen=True, kw_only=True):
    """The differences of a server from OpenAI's protocol."""

    max_tokens_field: str = "max_completion_tokens"
    """The field that limits an answer's tokens."""
    stream_usage: bool = True
    """Whether the server can send usage at the end of a stream. Without usage, tokens are estimated."""
    enforces_schemas: bool = True
    """Whether the server surely makes answers fit a JSON Schema. If not, the prompt describes it, too."""


NO_QUIRKS = ChatQuirks()


def encode(prompt: Prompt, model: str, quirks: ChatQuirks = NO_QUIRKS) -> bytes:
    """The JSON of a request for a stream, with usage at its end if the server can send it."""
    body: dict[str, Any] = {"model": model, "messages": list(_messages(prompt)), "stream": True}
    if quirks.stream_usage:
        body["stream_options"] = {"include_usage": True}
    if tools := prompt_order.offered_tools(prompt):
        body["tools"] = [_tool(spec) for spec in tools]
        body["tool_choice"] = "required" if prompt.requires_tool else "auto" if prompt.tools else "none"
        if prompt.tools and not prompt.generation.parallel_tool_calls:
            body["parallel_tool_calls"] = False
    if prompt.max_output_tokens:
        body[quirks.max_tokens_field] = prompt.max_output_tokens
    if (requested := prompt.native_format) is not None:
        body["response_format"] = _format(requested)
    body |= _sampling(prompt.generation)
    return msgspec.json.encode(body)


def _sampling(options: GenerationOptions) -> dict[str, Any]:
    body = {name: value for name in SAMPLING if (value := getattr(options, name)) is not None}
    if options.stop:
        body["stop"] = options.stop
    if options.logprobs:
        body["logprobs"] = True
        if options.top_logprobs:
            body["top_logprobs"] = options.top_logprobs
    return body


def _format(requested: ResponseFormat) -> dict[str, Any]:
    if requested.schema is None:
        return {"type": "json_object"}
    schema = {"name": requested.name, "schema": requested.schema, "strict": requested.strict}
    described = {"description": requested.description} if requested.description else {}
    return {"type": "json_schema", "json_schema": {**schema, **described}}


def _tool(spec: ToolSpec) -> dict[str, Any]:
    """A tool. Strict mode is only for those that request it: it rejects some schemas.

    OpenAI requires `properties` in schemas of objects.
    """
    schema = {"properties": {}, **spec.parameters} if spec.parameters.get("type") == "object" else spec.parameters
    function = {"name": spec.name, "description": spec.description, "parameters": schema}
    return {"type": "function", "function": {**function, "strict": True} if spec.strict else function}


def _messages(prompt: Prompt) -> Iterator[dict[str, Any]]:
    for turns in prompt_order.alternate(prompt):
        if turns[0].role == "assistant":
            yield _assistant(turns)
        else:
            for turn in turns:
                yield from _other(turn)


def _assistant(turns: Iterable[PromptTurn]) -> dict[str, Any]:
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for turn in turns:
        texts += [turn.text] if turn.text else []
        calls += map(_call, turn.uses)
    message: dict[str, Any] = {"role": "assistant", "content": "\n\n".join(texts) if texts else None}
    return {**message, "tool_calls": calls} if calls else message


def _call(use: ToolUse) -> dict[str, Any]:
    arguments = msgspec.json.encode(use.args).decode()
    return {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": arguments}}


def _other(turn: PromptTurn) -> Iterator[dict[str, Any]]:
    match turn.role:
        case "tool":
            yield from map(_outcome, turn.outcomes)
        case "system":
            yield {"role": "system", "content": turn.text}
        case _:
            yield {"role": "user", "content": _parts(turn) if turn.files else turn.text}


def _outcome(outcome: ToolOutcome) -> dict[str, Any]:
    """An outcome. A failed one is wrapped as an error, because the protocol has no field for it."""
    content = outcome.text if outcome.ok else msgspec.json.encode({"error": outcome.text}).decode()
    return {"role": "tool", "tool_call_id": outcome.id, "content": content}


def _parts(turn: PromptTurn) -> list[dict[str, Any]]:
    parts = [part for file in turn.files for part in _file(file)]
    return [*parts, _text(turn.text)] if turn.text.strip() else parts


def _file(file: PromptFile) -> Iterator[dict[str, Any]]:
    """A file after its heading. A file that models cannot read is sent as text."""
    match prompt_files.kind_of(file):
        case "image":
            yield _text(prompt_files.heading(file))
            yield {"type": "image_url", "image_url": {"url": _uri(file)}}
        case "pdf":
            yield _text(prompt_files.heading(file))
            yield {"type": "file", "file": {"file_data": _uri(file), "filename": "filename.pdf"}}
        case _:
            yield _text(prompt_files.as_text(file))


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _uri(file: PromptFile) -> str:
    return f"data:{prompt_files.media_type(file)};base64,{b64encode(file.data).decode()}"
