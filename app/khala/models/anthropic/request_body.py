"""Encodes a prompt as the body of a request to Anthropic's Messages API."""

from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from khala.domain.tools import ToolSpec
from khala.models import prompt_files, prompt_order
from khala.models.anthropic import abilities, schemas
from khala.models.port import Prompt, PromptFile, PromptTurn, ToolOutcome, ToolUse

DEFAULT_MAX_TOKENS = 16_384
"""Tokens of an answer of a model that is not in `MAX_OUTPUT_TOKENS`. Anthropic requires a limit."""
LEGACY_MAX_TOKENS = 4096
"""The same for models that refuse a prompt if it and the limit together exceed the window, or that write no more."""
LEGACY_MODELS = (
    "claude-3",
    "claude-4-",
    "claude-opus-4-0",
    "claude-opus-4-1",
    "claude-opus-4-2",
    "claude-sonnet-4-0",
    "claude-sonnet-4-2",
)
"""Beginnings of their names. `claude-opus-4` and `claude-sonnet-4` by themselves are such models, too."""
MAX_OUTPUT_TOKENS = {
    **dict.fromkeys(("claude-haiku-4-5", "claude-opus-4-5", "claude-sonnet-4-5"), 64_000),
    **dict.fromkeys(("claude-opus-4-6", "claude-opus-4-7", "claude-opus-4-8", "claude-sonnet-4-6"), 128_000),
    **dict.fromkeys(("claude-fable-5", "claude-mythos-5", "claude-opus-5", "claude-sonnet-5"), 128_000),
    "claude-haiku-5-5": 128_000,
}
"""The longest answer of the models whose names begin so."""


def encode(prompt: Prompt, model: str) -> bytes:
    """The JSON of a request for a stream. Instructions and the system's turns are joined."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": max_tokens(model, prompt.max_output_tokens),
        "messages": list(_messages(prompt)),
        "stream": True,
    }
    if system := "\n\n".join(turn.text for turns in prompt_order.alternate(prompt) for turn in _system(turns)):
        body["system"] = system
    if tools := prompt_order.offered_tools(prompt):
        body["tools"] = [_tool(spec, model) for spec in tools]
        body["tool_choice"] = _tool_choice(prompt)
    if output := _output_config(prompt, model):
        body["output_config"] = output
    return msgspec.json.encode(body | _generation(prompt, model))


def _tool(spec: ToolSpec, model: str) -> dict[str, Any]:
    """A tool, in strict mode if that is requested and can be."""
    tool = {"name": spec.name, "description": spec.description, "input_schema": spec.parameters}
    if not spec.strict or not abilities.has_structured_outputs(model):
        return tool
    schema = schemas.enforceable(spec.parameters)
    return tool if schema is None else {**tool, "input_schema": schema, "strict": True}


def _tool_choice(prompt: Prompt) -> dict[str, Any]:
    if not prompt.tools:
        return {"type": "none"}
    kind = {"type": "any" if prompt.requires_tool else "auto"}
    return kind if prompt.generation.parallel_tool_calls else {**kind, "disable_parallel_tool_use": True}


def _output_config(prompt: Prompt, model: str) -> dict[str, Any]:
    effort = prompt.generation.reasoning_effort
    config = {"effort": abilities.effort(model, effort)} if effort and abilities.has_effort(model) else {}
    requested = prompt.native_format
    if requested is None or requested.schema is None or not abilities.has_structured_outputs(model):
        return config
    schema = schemas.enforceable(requested.schema)
    return config if schema is None else {**config, "format": {"type": "json_schema", "schema": schema}}


def _generation(prompt: Prompt, model: str) -> dict[str, Any]:
    """The options that the model has. A fallback model may lack some of those that were requested.

    This version of the API has no `temperature` and no `top_p`, and refuses to think if a tool is required.
    """
    options = prompt.generation
    body: dict[str, Any] = {}
    if stop := [text for text in options.stop if text.strip()]:
        body["stop_sequences"] = stop
    if options.user:
        body["metadata"] = {"user_id": options.user}
    thinks = options.reasoning_effort not in (None, "none") and abilities.thinks_adaptively(model)
    if thinks and not prompt.requires_tool:
        body["thinking"] = {"type": "adaptive"}
    return body


def max_tokens(model: str, requested: int | None) -> int:
    """The limit of an answer: as requested, but no more than the model can write, which Anthropic refuses."""
    longest = next((tokens for name, tokens in MAX_OUTPUT_TOKENS.items() if model.startswith(name)), None)
    if requested is not None:
        return min(requested, longest or requested)
    if model.partition("@")[0] in ("claude-opus-4", "claude-sonnet-4") or model.startswith(LEGACY_MODELS):
        return LEGACY_MAX_TOKENS
    return longest or DEFAULT_MAX_TOKENS


def _system(turns: Iterable[PromptTurn]) -> Iterator[PromptTurn]:
    return (turn for turn in turns if turn.role == "system")


def _messages(prompt: Prompt) -> Iterator[dict[str, Any]]:
    for turns in prompt_order.alternate(prompt):
        role = "assistant" if turns[0].role == "assistant" else "user"
        if content := [block for turn in turns for block in _blocks(turn)]:
            yield {"role": role, "content": content}


def _blocks(turn: PromptTurn) -> Iterator[dict[str, Any]]:
    match turn.role:
        case "assistant":
            if turn.text:
                yield _text(turn.text)
            yield from map(_use, turn.uses)
        case "tool":
            yield from map(_outcome, turn.outcomes)
        case "user":
            for file in turn.files:
                yield from _file(file)
            if turn.text.strip() or not turn.files:
                yield _text(turn.text)
        case _:
            return


def _use(use: ToolUse) -> dict[str, Any]:
    return {"type": "tool_use", "id": use.id, "name": use.name, "input": use.args}


def _outcome(outcome: ToolOutcome) -> dict[str, Any]:
    return {
        "type": "tool_result",
        "tool_use_id": outcome.id,
        "content": [_text(outcome.text)],
        "is_error": not outcome.ok,
    }


def _file(file: PromptFile) -> Iterator[dict[str, Any]]:
    """A file after its heading. A file that models cannot read is sent as text."""
    kind = prompt_files.kind_of(file)
    if kind in ("image", "pdf"):
        data = b64encode(file.data).decode()
        source = {"type": "base64", "media_type": prompt_files.media_type(file), "data": data}
        yield _text(prompt_files.heading(file))
        yield {"type": "image" if kind == "image" else "document", "source": source}
    else:
        yield _text(prompt_files.as_text(file))


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
