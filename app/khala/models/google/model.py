"""The language model port for Google."""

from collections.abc import Iterable
from typing import Any

from khala.models.failures import ProviderRefusalError
from khala.models.google import errors, request_body
from khala.models.google.content_reader import ContentReader
from khala.models.port import Prompt
from khala.models.streaming.model import StreamingModel

API_VERSION = "v1beta"
SERVER_TIMEOUT_SECONDS = "1200"
"""Total time of an answer, after which Google's server ends it."""


class GeminiModel(StreamingModel):
    """One model, called over the Gemini API."""

    def enforces(self, schema: dict[str, Any]) -> bool:
        """Whether Google makes an answer fit the schema, also if the prompt has tools."""
        return request_body.combines_tools(self.name)

    def _target(self) -> str:
        name = self.name if self.name.startswith(("models/", "tunedModels/")) else f"models/{self.name}"
        return f"{API_VERSION}/{name}:streamGenerateContent?alt=sse"

    def _encode(self, prompt: Prompt) -> bytes:
        return request_body.encode(prompt, self.name)

    def _open_answer(self) -> ContentReader:
        return ContentReader()

    def _parse_error(self, error: Any, status: int, retry_after: float | None) -> ProviderRefusalError:
        return errors.parse(error, status, retry_after)


def headers(key: str) -> Iterable[tuple[str, str]]:
    """The headers of every request, beside those of the client."""
    yield "X-Goog-Api-Key", key
    yield "X-Server-Timeout", SERVER_TIMEOUT_SECONDS
