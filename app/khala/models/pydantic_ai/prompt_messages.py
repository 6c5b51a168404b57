"""A prompt in pydantic-ai's terms: what a provider is told of the conversation, its files and its tools."""

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
    """The tools that the model is told of. Not in providers' strict modes, which don't know every schema."""
    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=spec.name,
                description=spec.description,
                parameters_json_schema=spec.parameters,
                strict=False,
            )
            for spec in prompt_order.offered(prompt)
        ]
    )


def settings(prompt: Prompt) -> ModelSettings:
    """The limit of the answer's length, and whether tools may be called."""
    chosen = ModelSettings()
    if prompt.max_output_tokens:
        chosen["max_tokens"] = prompt.max_output_tokens
    if not prompt.tools and prompt_order.offered(prompt):
        chosen["tool_choice"] = "none"
    return chosen


def messages(prompt: Prompt) -> Iterator[ModelMessage]:
    """The conversation, a message for each voice.

    Providers without system messages amid a conversation get them joined to the instructions.
    """
    for turns in prompt_order.voices(prompt):
        if turns[0].role == "assistant":
            yield ModelResponse(parts=list(_said(turns)))
        else:
            yield ModelRequest(parts=[part for turn in turns for part in _asked(turn)])


def _said(turns: Iterable[PromptTurn]) -> Iterator[TextPart | ToolCallPart]:
    for turn in turns:
        if turn.text:
            yield TextPart(turn.text)
        yield from map(_call, turn.uses)


def _call(use: ToolUse) -> ToolCallPart:
    return ToolCallPart(tool_name=use.name, args=use.args, tool_call_id=use.id)


def _asked(turn: PromptTurn) -> Iterator[ModelRequestPart]:
    match turn.role:
        case "tool":
            yield from map(_return, turn.outcomes)
        case "system":
            yield SystemPromptPart(turn.text)
        case _:
            yield _user(turn)


def _return(outcome: ToolOutcome) -> ToolReturnPart:
    """An outcome; the library marks a failed one as each provider has it."""
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
    """A file, after its name; what models can't see is text."""
    if prompt_files.sort(file) in ("image", "pdf"):
        yield prompt_files.head(file)
        yield BinaryContent(file.data, media_type=prompt_files.bare(file))
    else:
        yield prompt_files.told(file)
