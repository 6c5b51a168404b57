"""Counts the tokens of a prompt for one model: by the model's vocabulary, or with a safety factor on an estimate."""

import math
from collections.abc import Sequence

import msgspec

from khala.domain.tools import ToolSpec
from khala.models import prompt_files
from khala.models.port import PromptFile, PromptTurn
from khala.models.token_counter import TokenCounter, estimate_file, estimate_tool
from khala.runs.prompt_messages import turn_texts

TURN_TOKENS = 4
"""Tokens of a turn beyond its text."""
SAFETY_FACTOR = 1.25
"""Estimated tokens count for so many, because an estimate may be too low: see `token_counter.estimate`."""


class ModelTokenCounter:
    """Counts the tokens of texts, turns, files and tools for one model."""

    def __init__(self, counter: TokenCounter, model: str) -> None:
        self._counter = counter
        self._model = model
        self.estimates = not counter.is_loaded(model)
        """Whether the counts are estimates, because the model's vocabulary is not known."""
        self.key = (model, self.estimates)
        """Identifies what is counted: equal keys count equally."""
        self._tools: dict[int, tuple[ToolSpec, int]] = {}

    def text(self, text: str) -> int:
        """Tokens of this text."""
        return self._safe(self._counter.count(text, self._model).tokens) + TURN_TOKENS if text else 0

    def turns(self, turns: Sequence[PromptTurn]) -> int:
        """Tokens of these turns."""
        return sum(self.text("\n".join(turn_texts(turn))) + sum(map(_document_tokens, turn.files)) for turn in turns)

    def file(self, file: PromptFile) -> int:
        """Tokens of this file."""
        return _document_tokens(file) + self.text(prompt_files.decode_text(file) or file.name)

    def tool(self, spec: ToolSpec) -> int:
        """Tokens of a tool's definition."""
        if self.estimates:
            return self._safe(estimate_tool(spec))
        cached = self._tools.get(id(spec))
        if cached is None:
            definition = msgspec.json.encode([spec.name, spec.description, spec.parameters]).decode()
            cached = self._tools[id(spec)] = spec, self.text(definition)
        return cached[1]

    def _safe(self, tokens: int) -> int:
        return math.ceil(tokens * SAFETY_FACTOR) if self.estimates else tokens


def _document_tokens(file: PromptFile) -> int:
    """Approximate tokens of an image or a PDF; zero for any other file, which the model reads as text."""
    return estimate_file(file) if prompt_files.kind_of(file) in ("image", "pdf") else 0
