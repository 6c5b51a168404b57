"""The port to embedding models: takes texts and returns one vector for each."""

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from khala.domain.vectors import Vector

Purpose: TypeAlias = Literal["document", "query"]
"""Whether a text is stored to be found, or searches for stored ones: some models embed the two differently."""


class EmbeddingResult(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors of some texts, in the order of the texts.

    `estimated`: the server reported no usage, so the tokens are an estimate.
    """

    vectors: tuple[Vector, ...]
    tokens: int
    estimated: bool = False


class EmbeddingModel(Protocol):
    """A model that can be called."""

    name: str
    """The configured name, such as `openai:text-embedding-3-small@512`. Another name means other vectors."""
    provider: str
    model: str
    """The provider's name of the model, for prices and metrics."""
    max_texts: int
    """Texts of one call."""

    async def embed(self, texts: Sequence[str], purpose: Purpose) -> EmbeddingResult:
        """Call the model once, without retries. Raises `khala.models.port.ModelFailed`."""
        ...

    async def aclose(self) -> None:
        """Release connections and memory."""
        ...
