"""`POST /v1/embeddings`: embeddings in OpenAI's protocol, by the embedding model of this server."""

import base64
import sys
from array import array
from typing import Any

import msgspec
from litestar import Request, Response, post
from litestar.di import NamedDependency

from khala.api.accounts.authentication import require_user
from khala.api.context import Context
from khala.api.openai.errors import ModelNotFound, RunFailed
from khala.api.openai.types import EmbeddingBody, EmbeddingItem, EmbeddingList, EmbeddingUsage
from khala.api.validation import check_text
from khala.domain.access import Caller
from khala.domain.errors import InvalidInput
from khala.domain.vectors import Vector
from khala.models.embeddings.embedder import MAX_CHARACTERS, Embedder
from khala.models.port import ModelFailed
from khala.store.budgets import payers

MAX_INPUTS = 2048
"""Texts of one request; OpenAI's limit."""
MAX_EMBEDDING_BODY_BYTES = 1 << 20
DEFAULT_NAME = "khala"
"""The name under which every server offers its embedding model."""

decoder = msgspec.json.Decoder(EmbeddingBody)


@post(
    "/embeddings",
    status_code=200,
    include_in_schema=False,
    request_max_body_size=MAX_EMBEDDING_BODY_BYTES,
    lenient=True,
)
async def embed(
    request: Request[Any, Any, Any], context: NamedDependency[Context], caller: NamedDependency[Caller]
) -> Response[EmbeddingList]:
    """Return one vector for each text. The call counts against the caller's budgets.

    A request for another number of dimensions is refused before it costs anything.
    """
    payer = payers.of_user(require_user(caller))
    body = _parse(await request.body())
    embedder = _embedder(body.model, context)
    texts = _texts(body)
    memories = context.memories.service
    try:
        if body.dimensions is not None:
            _check_dimensions(body.dimensions, await memories.dimensions())
        result = await memories.meter.documents(payer, texts)
    except ModelFailed as failure:
        raise RunFailed(failure.code, failure.message) from failure
    encode = _as_base64 if body.encoding_format == "base64" else list
    listed = [EmbeddingItem(index=index, embedding=encode(vector)) for index, vector in enumerate(result.vectors)]
    usage = EmbeddingUsage(prompt_tokens=result.tokens, total_tokens=result.tokens)
    return Response(EmbeddingList(data=listed, model=embedder.name, usage=usage), media_type="application/json")


def _parse(body: bytes) -> EmbeddingBody:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        message, _, place = str(error).partition(" - at `$")
        raise InvalidInput(f"{message}.", path=place.rstrip("`").removeprefix(".")) from error


def _embedder(name: str, context: Context) -> Embedder:
    """Return the embedding model under this name: `khala`, its configured name, or the provider's name for it."""
    embedder = context.models.embedder
    if embedder is None:
        raise ModelNotFound("This server has no embedding model: its operator can set KHALA_EMBEDDINGS.")
    if name not in (DEFAULT_NAME, *embedder.names):
        raise ModelNotFound(f"The embedding model {name[:100]!r} does not exist here; {embedder.name} does.")
    return embedder


def _check_dimensions(requested: int, actual: int) -> None:
    if requested != actual:
        raise InvalidInput(f"The model has {actual} dimensions.", path="dimensions")


def _texts(body: EmbeddingBody) -> list[str]:
    texts = [body.input] if isinstance(body.input, str) else body.input
    if not 0 < len(texts) <= MAX_INPUTS:
        raise InvalidInput(f"Send 1 to {MAX_INPUTS:,} texts.", path="input")
    for index, text in enumerate(texts):
        path = "input" if isinstance(body.input, str) else f"input[{index}]"
        if not isinstance(text, str):
            raise InvalidInput("Send texts: tokens are not supported.", path=path)
        if not check_text(text, path).strip():
            raise InvalidInput("Send a text that is not blank.", path=path)
        if len(text) > MAX_CHARACTERS:
            raise InvalidInput(f"A text has at most {MAX_CHARACTERS:,} characters.", path=path)
    return [text for text in texts if isinstance(text, str)]


def _as_base64(vector: Vector) -> str:
    """The values as little-endian 32-bit floats."""
    values = array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode()
