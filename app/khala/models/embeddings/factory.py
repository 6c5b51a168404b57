"""Opens the configured embedding model."""

from khala.models.embeddings.embedder import Embedder
from khala.models.embeddings.embedding_names import EmbeddingRef
from khala.models.embeddings.port import EmbeddingModel
from khala.models.provider_registry import IDLE_SECONDS, NO_KEY, PROVIDERS, ProviderAccess

CONNECT_TIMEOUT_SECONDS = 5.0
READ_TIMEOUT_SECONDS = 60.0
"""A server that loads the model for its first call takes long."""
MAX_CONNECTIONS = 16


class EmbeddingModelError(RuntimeError):
    """The configured embedding model cannot be used. The message says what the operator should do."""


def open_embedder(ref: EmbeddingRef, access: ProviderAccess) -> Embedder:
    """Open the model without calling it. Raises `EmbeddingModelError`. A local model is loaded, which takes seconds."""
    return Embedder(_open_local(ref) if ref.provider == "local" else _open_remote(ref, access))


def _open_local(ref: EmbeddingRef) -> EmbeddingModel:
    from khala.models.embeddings.local_model import LocalEmbeddings, LocalModelError

    try:
        return LocalEmbeddings(ref)
    except LocalModelError as error:
        raise EmbeddingModelError(str(error)) from error


def _open_remote(ref: EmbeddingRef, access: ProviderAccess) -> EmbeddingModel:
    from khala.models.embeddings.openai_protocol import OpenAIEmbeddings
    from khala.models.openai.model import headers
    from khala.models.streaming.http_client import HttpClient

    if not (access.key or access.url):
        raise EmbeddingModelError(
            "No key for the embedding model: set KHALA_EMBEDDINGS_KEY or OPENAI_API_KEY, or KHALA_EMBEDDINGS_URL for a "
            "server that needs none."
        )
    try:
        http = HttpClient(
            access.url or PROVIDERS["openai"].url,
            dict(headers(access.key or NO_KEY, access.organization, access.project)),
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            read_timeout=READ_TIMEOUT_SECONDS,
            max_connections=MAX_CONNECTIONS,
            idle_seconds=IDLE_SECONDS,
        )
    except ValueError as error:
        raise EmbeddingModelError(f"The address of the embedding model cannot be used: {error}") from error
    return OpenAIEmbeddings(http, ref)
