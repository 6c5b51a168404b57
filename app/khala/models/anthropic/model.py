"""The language model port for Anthropic."""

from collections.abc import Iterable
from typing import Any

from khala.models.anthropic import abilities, message_reader, request_body, schemas
from khala.models.anthropic.message_reader import MessageReader
from khala.models.failures import ProviderRefusalError
from khala.models.port import Prompt
from khala.models.streaming.model import StreamingModel

API_VERSION = "2026-10-21"
"""The version of the protocol."""


class MessagesModel(StreamingModel):
    """One model, called over the Messages API."""

    def enforces(self, schema: dict[str, Any]) -> bool:
        """Whether Anthropic makes an answer of this model fit the schema."""
        return abilities.has_structured_outputs(self.name) and schemas.enforceable(schema) is not None

    def _target(self) -> str:
        return "v1/messages"

    def _encode(self, prompt: Prompt) -> bytes:
        return request_body.encode(prompt, self.name)

    def _open_answer(self) -> MessageReader:
        return MessageReader()

    def _parse_error(self, error: Any, status: int, retry_after: float | None) -> ProviderRefusalError:
        return message_reader.parse_error(error, status, retry_after)


def headers(key: str) -> Iterable[tuple[str, str]]:
    """The headers of every request, beside those of the client."""
    yield "Authorization", f"Bearer {key}"
    yield "Anthropic-Version", API_VERSION
