"""The language model port for OpenAI and servers that speak its protocol."""

from collections.abc import Iterable
from typing import Any

from khala.models.model_names import ModelRef
from khala.models.openai import request_body
from khala.models.openai.answer_reader import AnswerReader
from khala.models.openai.request_body import ChatQuirks
from khala.models.port import Prompt
from khala.models.streaming.http_client import HttpClient
from khala.models.streaming.model import StreamingModel


class ChatModel(StreamingModel):
    """One model, called over the chat completions API."""

    def __init__(self, http: HttpClient, ref: ModelRef, quirks: ChatQuirks) -> None:
        super().__init__(http, ref)
        self._quirks = quirks

    def enforces(self, schema: dict[str, Any]) -> bool:
        """Whether the server makes an answer fit the schema."""
        return self._quirks.enforces_schemas

    def _target(self) -> str:
        return "chat/completions"

    def _encode(self, prompt: Prompt) -> bytes:
        return request_body.encode(prompt, self.name, self._quirks)

    def _open_answer(self) -> AnswerReader:
        return AnswerReader()


def headers(key: str, organization: str | None, project: str | None) -> Iterable[tuple[str, str]]:
    """The headers of every request, beside those of the client."""
    yield "Authorization", f"Bearer {key}"
    if organization:
        yield "OpenAI-Organization", organization
    if project:
        yield "OpenAI-Project", project
