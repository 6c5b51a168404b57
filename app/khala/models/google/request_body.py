"""Encodes a prompt as the body of a request to the Gemini API."""

from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from khala.domain.generation import GenerationOptions, ReasoningEffort
from khala.models import prompt_files, prompt_order
from khala.models.google import abilities, schemas
from khala.models.port import Prompt, PromptFile, PromptTurn, ToolOutcome, ToolUse

NO_SIGNATURE = b64encode(b"skip_thought_signature_validator").decode()
"""The signature of calls whose own was not stored. Newer models refuse a turn whose first call has none.

https://ai.google.dev/gemini-api/docs/thought-signatures
"""


SAMPLING = {
    "temperature": "temperature", "top_p": "topP",
    "presence_penalty": "presencePenalty", "frequency_penalty": "frequencyPenalty",
}  # fmt: skip
MAX_SEED = 2**31 - 1
LEVELS: dict[ReasoningEffort, str] = {
    "none": "MINIMAL", "minimal": "MINIMAL", "low": "LOW", "medium": "MEDIUM",
    "high": "HIGH", "xhigh": "HIGH", "max": "HIGH",
}  # fmt: skip
BUDGETS: dict[ReasoningEffort, int] = {
    "none": 0, "minimal": 512, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 24_576, "max": 24_576,
}  # fmt: skip
"""Tokens of reasoning, for models of Gemini 2, which have no levels."""
MIN_PRO_BUDGET = 128
"""Tokens of reasoning that the larger models of Gemini 2.5 use at least."""
NO_COMBINATION = ("gemini-1", "gemini-2")
"""Beginnings of the names of models that refuse a prompt with both tools and a format."""


def encode(prompt: Prompt, model: str) -> bytes:
    """The JSON of a request. The system's turns within the conversation become instructions."""
    groups = list(prompt_order.alternate(prompt))
    config: dict[str, Any] = {"responseModalities": ["TEXT"], **_sampling(prompt.generation, model)}
    if prompt.max_output_tokens:
        config["maxOutputTokens"] = prompt.max_output_tokens
    body: dict[str, Any] = {
        "contents": [content for turns in groups for content in _contents(turns)],
        "generationConfig": config,
    }
    if system := [{"text": turn.text} for turns in groups for turn in turns if turn.role == "system"]:
        body["systemInstruction"] = {"parts": system, "role": "user"}
    if tools := prompt_order.offered_tools(prompt):
        declared = [
            {"name": spec.name, "description": spec.description, "parameters_json_schema": spec.parameters}
            for spec in tools
        ]
        body["tools"] = [{"functionDeclarations": declared}]
        body["toolConfig"] = {"functionCallingConfig": {"mode": _tool_mode(prompt, model)}}
    if (requested := prompt.native_format) is not None and ("tools" not in body or combines_tools(model)):
        config["responseMimeType"] = "application/json"
        if requested.schema is not None:
            config["responseJsonSchema"] = schemas.known(requested.schema)
    return msgspec.json.encode(body)


def _sampling(options: GenerationOptions, model: str) -> dict[str, Any]:
    body = {key: value for name, key in SAMPLING.items() if (value := getattr(options, name)) is not None}
    if options.seed is not None:
        body["seed"] = options.seed & MAX_SEED
    if options.stop:
        body["stopSequences"] = options.stop
    if options.logprobs:
        body |= {"responseLogprobs": True, "logprobs": options.top_logprobs}
    if options.reasoning_effort is not None and abilities.thinks(model):
        body["thinkingConfig"] = _thinking(options.reasoning_effort, model)
    return body


def _thinking(effort: ReasoningEffort, model: str) -> dict[str, Any]:
    if combines_tools(model):
        return {"thinkingLevel": LEVELS[effort]}
    least = MIN_PRO_BUDGET if "pro" in model else 0
    return {"thinkingBudget": max(BUDGETS[effort], least)}


def _tool_mode(prompt: Prompt, model: str) -> str:
    if not prompt.tools:
        return "NONE"
    if prompt.requires_tool:
        return "ANY"
    return "VALIDATED" if combines_tools(model) and any(spec.strict for spec in prompt.tools) else "AUTO"


def combines_tools(model: str) -> bool:
    """Whether a prompt for the model may have both tools and a format."""
    return not model.removeprefix("models/").startswith(NO_COMBINATION)


def _contents(turns: Sequence[PromptTurn]) -> Iterator[dict[str, Any]]:
    """The model's turns as one content, or the outcomes of its calls as one and what people say as the next."""
    if turns[0].role == "assistant":
        yield {"role": "model", "parts": list(_answer_parts(turns))}
        return
    if outcomes := [_outcome(outcome) for turn in turns for outcome in turn.outcomes]:
        yield {"role": "user", "parts": outcomes}
    if parts := [part for turn in turns if turn.role == "user" for part in _user_parts(turn)]:
        yield {"role": "user", "parts": parts}


def _answer_parts(turns: Iterable[PromptTurn]) -> Iterator[dict[str, Any]]:
    is_first = True
    for turn in turns:
        if turn.text:
            yield {"text": turn.text}
        for use in turn.uses:
            yield {**_use(use), "thoughtSignature": NO_SIGNATURE} if is_first else _use(use)
            is_first = False


def _use(use: ToolUse) -> dict[str, Any]:
    return {"functionCall": {"id": use.id, "name": use.name, "args": use.args}}


def _outcome(outcome: ToolOutcome) -> dict[str, Any]:
    response = {"return_value" if outcome.ok else "error": outcome.text}
    return {"functionResponse": {"id": outcome.id, "name": outcome.name, "response": response}}


def _user_parts(turn: PromptTurn) -> Iterator[dict[str, Any]]:
    for file in turn.files:
        yield from _file(file)
    if turn.text.strip() or not turn.files:
        yield {"text": turn.text}


def _file(file: PromptFile) -> Iterator[dict[str, Any]]:
    """A file after its heading. A file that models cannot read is sent as text."""
    if prompt_files.kind_of(file) in ("image", "pdf"):
        data = urlsafe_b64encode(file.data).decode()
        yield {"text": prompt_files.heading(file)}
        yield {"inlineData": {"data": data, "mime_type": prompt_files.media_type(file)}}
    else:
        yield {"text": prompt_files.as_text(file)}
