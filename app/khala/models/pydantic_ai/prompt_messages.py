"""Converts a prompt to pydantic-ai's messages, tools and settings."""

from collections.abc import Iterable, Iterator

from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from khala.models import prompt_files, prompt_order
from khala.models.port import Prompt, PromptFile, PromptTurn, ToolOutcome, ToolUse


def parameters(prompt: Prompt) -> ModelRequestParameters:
    """The tools of the prompt, without the providers' strict modes, which reject some schemas."""
    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=spec.name,
                description=spec.description,
                parameters_json_schema=spec.parameters,
                strict=False,
            )
            for spec in prompt_order.offered_tools(prompt)
        ]
    )


def model_settings(prompt: Prompt) -> ModelSettings:
    """The limit of the answer's tokens, and whether tools may be called."""
    settings = ModelSettings()
    if prompt.max_output_tokens:
        settings["max_tokens"] = prompt.max_output_tokens
    if not prompt.tools and prompt_order.offered_tools(prompt):
        settings["tool_choice"] = "none"
    return settings


def messages(prompt: Prompt) -> Iterator[ModelMessage]:
    """The conversation as alternating requests and responses.

    For providers without system messages inside a conversation, pydantic-ai joins these to the instructions.
    """
    for turns in prompt_order.alternate(prompt):
        if turns[0].role == "assistant":
            yield ModelResponse(parts=list(_response_parts(turns)))
        else:
            yield ModelRequest(parts=[part for turn in turns for part in _request_parts(turn)])


def _response_parts(turns: Iterable[PromptTurn]) -> Iterator[TextPart | ToolCallPart]:
    for turn in turns:
        if turn.text:
            yield TextPart(turn.text)
        yield from map(_call, turn.uses)


def _call(use: ToolUse) -> ToolCallPart:
    return ToolCallPart(tool_name=use.name, args=use.args, tool_call_id=use.id)


def _request_parts(turn: PromptTurn) -> Iterator[ModelRequestPart]:
    match turn.role:
        case "tool":
            yield from map(_return, turn.outcomes)
        case "system":
            yield SystemPromptPart(turn.text)
        case _:
            yield _user(turn)


def _return(outcome: ToolOutcome) -> ToolReturnPart:
    """An outcome. The library marks a failed one in each provider's format."""
    return ToolReturnPart(
        tool_name=outcome.name,
        content=outcome.text,
        tool_call_id=outcome.id,
        outcome="success" if outcome.ok else "failed",
    )


def _user(turn: PromptTurn) -> UserPromptPart:
    if not turn.files:
        return UserPromptPart(turn.text)
    text = [turn.text] if turn.text.strip() else []
    return UserPromptPart([*(content for file in turn.files for content in _file(file)), *text])


def _file(file: PromptFile) -> Iterator[UserContent]:
    """A file after its heading. A file that models cannot read is sent as text."""
    if prompt_files.kind_of(file) in ("image", "pdf"):
        yield prompt_files.heading(file)
        yield BinaryContent(file.data, media_type=prompt_files.media_type(file))
    else:
        yield prompt_files.as_text(file)
