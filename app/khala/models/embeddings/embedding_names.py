"""Names of embedding models: parses `openai:NAME@DIMENSIONS` and `local:DIRECTORY`."""

import re
from typing import Literal

import msgspec

from khala.domain.vectors import MAX_DIMENSIONS

SYNTAX = re.compile(r"(?P<provider>openai|local):(?P<name>[^@]*[^@\s])(?:@(?P<dimensions>[0-9]{1,6}))?")
EXAMPLES = "openai:NAME, openai:NAME@DIMENSIONS or local:DIRECTORY"


class EmbeddingRef(msgspec.Struct, frozen=True):
    """An embedding model by name. `str()` gives the form that `parse` reads.

    `dimensions`: the length of its vectors, if a model with a choice of lengths is asked for one. The name of a `local`
    model is its directory.
    """

    provider: Literal["openai", "local"]
    name: str
    dimensions: int | None = None

    def __str__(self) -> str:
        suffix = "" if self.dimensions is None else f"@{self.dimensions}"
        return f"{self.provider}:{self.name}{suffix}"


def parse(text: str) -> EmbeddingRef | None:
    """Parse a name; `none` gives None. Raises `ValueError`."""
    text = text.strip()
    if text == "none":
        return None
    match = SYNTAX.fullmatch(text)
    if match is None:
        raise ValueError(f"must be {EXAMPLES}, or none, not {text!r}.")
    dimensions = int(match["dimensions"]) if match["dimensions"] else None
    if dimensions is not None and not 0 < dimensions <= MAX_DIMENSIONS:
        raise ValueError(f"asks for {dimensions} dimensions: there can be 1 to {MAX_DIMENSIONS}.")
    if dimensions is not None and match["provider"] == "local":
        raise ValueError("cannot choose the dimensions of a local model.")
    provider: Literal["openai", "local"] = "openai" if match["provider"] == "openai" else "local"
    return EmbeddingRef(provider, match["name"], dimensions)
