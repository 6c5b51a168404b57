"""Encodes values of the items of a response: text, the arguments and the output of a call, and log probabilities."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from khala.api.openai.types import JsonObject
from khala.domain.parts import TokenLogprob, ToolResult


def text_part(text: str, logprobs: Sequence[JsonObject]) -> JsonObject:
    """Return the content of a message with this text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": [*logprobs]}


def output_of(result: ToolResult) -> str:
    """The output of a call, or the beginning of one that is too large for a part."""
    if result.blob is not None:
        return result.blob.preview or result.summary
    if result.output is None:
        return result.summary
    return result.output if isinstance(result.output, str) else msgspec.json.encode(result.output).decode()


def encode_logprob(token: TokenLogprob) -> JsonObject:
    """Return a token of a message's text with its probability."""
    top = [{"token": one.token, "logprob": one.logprob, "bytes": list(one.token.encode())} for one in token.top]
    encoded = list(token.token.encode() if token.bytes is None else token.bytes)
    return {"token": token.token, "logprob": token.logprob, "bytes": encoded, "top_logprobs": top}


def encode_arguments(args: Mapping[str, Any] | None) -> str:
    """Return the arguments of a call as JSON."""
    return msgspec.json.encode(args or {}).decode()


def code_of(arguments: str) -> str:
    """Return the program in the arguments of a call, which are JSON; empty if they have none."""
    args = msgspec.json.decode(arguments)
    code = args.get("code") if isinstance(args, dict) else None
    return code if isinstance(code, str) else ""
