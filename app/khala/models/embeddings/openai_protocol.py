"""The embedding model port for OpenAI, and for servers with its `/v1/embeddings`: Ollama, vLLM, TEI, LiteLLM."""

import asyncio
import base64
import binascii
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import msgspec

from khala.domain.vectors import MAX_DIMENSIONS, Vector, unit_vector
from khala.models import failures, token_counter
from khala.models.embeddings.embedding_names import EmbeddingRef
from khala.models.embeddings.port import EmbeddingResult, Purpose
from khala.models.failures import ProviderRefusalError
from khala.models.port import ModelFailed
from khala.models.streaming import error_responses
from khala.models.streaming.http_client import FAILURE_KINDS, HttpClient, read_available

SUCCESS = 200
MAX_TEXTS = 128
"""Texts of one call. OpenAI accepts 2,048, some servers 32 to 256 times the length of a passage."""
CALL_TIMEOUT_SECONDS = 100.0
"""Time of one call, however slowly its response arrives. Shorter than the lease of those who wait for it."""
MAX_ADDED_TOKENS = 512
"""Tokens that a server may add to a text, which has at most one token for each byte, such as an instruction."""
MAX_BYTES_PER_VALUE = 32
"""Of a response: a number as JSON text has about 22 bytes, in base64 it has 6."""
MAX_FRAME_BYTES = 64 << 10
"""Of a response beside its vectors."""


class BadEmbeddingsError(ValueError):
    """A response does not have one usable vector for each text. The message says what is wrong."""


class _Item(msgspec.Struct):
    embedding: str | list[float]
    index: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    total_tokens: int | None = None


class _Body(msgspec.Struct):
    data: list[_Item] | None = None
    usage: _Usage | None = None
    error: Any = None


class OpenAIEmbeddings:
    """One model, called over the embeddings API.

    The vectors of a response must have the same number of dimensions: the requested one, if there is one.
    """

    max_texts = MAX_TEXTS
    provider = "openai"

    def __init__(self, http: HttpClient, ref: EmbeddingRef) -> None:
        self.name = str(ref)
        self.model = ref.name
        self._http = http
        self._requested = ref.dimensions

    async def embed(self, texts: Sequence[str], purpose: Purpose) -> EmbeddingResult:
        """Call the model once. See `port.EmbeddingModel.embed`."""
        request: dict[str, Any] = {"model": self.model, "input": list(texts), "encoding_format": "base64"}
        if self._requested is not None:
            request["dimensions"] = self._requested
        try:
            async with (
                asyncio.timeout(CALL_TIMEOUT_SECONDS),
                self._http.post("embeddings", msgspec.json.encode(request)) as response,
            ):
                if response.status != SUCCESS:
                    raise await error_responses.read(response)
                return self._result(await self._read(response, len(texts)), texts)
        except ModelFailed:
            raise
        except Exception as error:  # any other error of the library becomes the cause of a ModelFailed
            raise failures.from_exception(error, self.provider, kinds=FAILURE_KINDS, midstream=False) from error

    async def aclose(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    async def _read(self, response: aiohttp.ClientResponse, count: int) -> _Body:
        limit = MAX_FRAME_BYTES + count * (self._requested or MAX_DIMENSIONS) * MAX_BYTES_PER_VALUE
        body = bytearray()
        while chunk := await read_available(response):
            body += chunk
            if len(body) > limit:
                raise BadEmbeddingsError(f"The response has more than {limit} bytes.")
        return msgspec.json.decode(body, type=_Body)

    def _result(self, body: _Body, texts: Sequence[str]) -> EmbeddingResult:
        if body.error is not None:
            raise ProviderRefusalError.parse(body.error, status=None)
        vectors = tuple(unit_vector(_values(item)) for item in _ordered(body.data or [], len(texts)))
        dimensions = self._requested or len(vectors[0])
        for vector in vectors:
            if len(vector) != dimensions:
                raise BadEmbeddingsError(f"A vector has {len(vector)} dimensions instead of {dimensions}.")
        reported = _reported_tokens(body.usage, texts)
        tokens = sum(map(token_counter.estimate, texts)) if reported is None else reported
        return EmbeddingResult(vectors=vectors, tokens=tokens, estimated=reported is None)


def _reported_tokens(usage: _Usage | None, texts: Sequence[str]) -> int | None:
    """The tokens that the server reports, or None if it reports none, or a number that these texts cannot have."""
    reported = usage and (usage.prompt_tokens or usage.total_tokens)
    most = sum(len(text.encode(errors="replace")) + MAX_ADDED_TOKENS for text in texts)
    return reported if reported and 0 < reported <= most else None


def _ordered(items: Sequence[_Item], count: int) -> Sequence[_Item]:
    """The items in the order of the texts. Raises `BadEmbeddingsError` unless there is one for each text."""
    if len(items) != count:
        raise BadEmbeddingsError(f"The response has {len(items)} vectors for {count} texts.")
    by_index: Mapping[int, _Item] = {
        position if item.index is None else item.index: item for position, item in enumerate(items)
    }
    if by_index.keys() != set(range(count)):
        raise BadEmbeddingsError("The vectors are not numbered as the texts are.")
    return [by_index[position] for position in range(count)]


def _values(item: _Item) -> Sequence[float]:
    """The numbers of an item: little-endian 32-bit floats in base64, or a list from servers that know no base64."""
    if not isinstance(item.embedding, str):
        return item.embedding
    try:
        data = base64.b64decode(item.embedding, validate=True)
    except binascii.Error as error:
        raise BadEmbeddingsError("A vector is not in base64.") from error
    if len(data) % 4:
        raise BadEmbeddingsError("A vector is not made of 32-bit floats.")
    values: Vector = array("f")
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
