"""Encodes a prompt as the body of a request to the Gemini API."""

from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from khala.models import prompt_files, prompt_order
from khala.models.port import Prompt, PromptFile, PromptTurn, ToolOutcome, ToolUse

NO_SIGNATURE = b64encode(b"skip_thought_signature_validator").decode()
"""The signature of calls whose own was not stored. Newer models refuse a turn whose first call has none.

https://ai.google.dev/gemini-api/docs/thought-signatures
"""


def encode(prompt: Prompt) -> bytes:
    """The JSON of a request. The system's turns within the conversation become instructions."""
    groups = list(prompt_order.alternate(prompt))
    config: dict[str, Any] = {"responseModalities": ["TEXT"]}
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
        body["toolConfig"] = {"functionCallingConfig": {"mode": "AUTO" if prompt.tools else "NONE"}}
    return msgspec.json.encode(body)


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
