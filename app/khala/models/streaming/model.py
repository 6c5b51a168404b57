"""The language model port over a stream of server-sent events: one request, and the answer as it arrives."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Any

import aiohttp

from khala.models import call_result, failures
from khala.models.failures import ProviderRefusalError
from khala.models.model_names import ModelRef
from khala.models.port import Completed, HoldText, ModelEvent, Prompt
from khala.models.streaming import error_responses
from khala.models.streaming.answer_assembly import AnswerAssembly
from khala.models.streaming.http_client import FAILURE_KINDS, RESPONSE_ERRORS, HttpClient, read_available
from khala.models.streaming.paced_reader import PacedReader
from khala.models.streaming.sse_parser import SseParser

END_TIMEOUT_SECONDS = 0.25
"""Time to wait for the end of a response after the end of the answer. Only then can the connection be used again."""
SUCCESS = 200


class NotAStreamError(ValueError):
    """A response is not a stream of the protocol's events."""


class StreamingModel(ABC):
    """One model. A subclass defines the protocol of its provider."""

    reads_tools = True

    def __init__(self, http: HttpClient, ref: ModelRef) -> None:
        self.name = ref.name
        self.provider: str = ref.provider
        self._http = http

    def enforces(self, schema: dict[str, Any]) -> bool:
        """Whether the provider makes an answer fit this JSON Schema."""
        return False

    @abstractmethod
    def _target(self) -> str:
        """The path, and the query if there is one, below the address of the client."""

    @abstractmethod
    def _encode(self, prompt: Prompt) -> bytes:
        """The body of the request."""

    @abstractmethod
    def _open_answer(self) -> AnswerAssembly:
        """A reader for one answer."""

    def _parse_error(self, error: Any, status: int, retry_after: float | None) -> ProviderRefusalError:
        """The error of a response. `retry_after` is that of its headers, in seconds."""
        return error_responses.parse_error(error, status, retry_after)

    @asynccontextmanager
    async def stream(self, prompt: Prompt, hold: HoldText | None = None) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """Call the model once. See `port.LanguageModel.stream`."""
        async with AsyncExitStack() as stack:
            try:
                body = self._encode(prompt)
                response = await stack.enter_async_context(self._http.post(self._target(), body))
                if response.status != SUCCESS:
                    raise await error_responses.read(response, self._parse_error)
            except Exception as error:  # any other error of the library becomes the cause of a ModelFailed
                abilities = failures.required_abilities(prompt)
                raise failures.from_exception(
                    error, self.provider, kinds=FAILURE_KINDS, midstream=False, abilities=abilities
                ) from error
            yield await stack.enter_async_context(aclosing(self._events(response, prompt, hold)))

    async def _events(
        self, response: aiohttp.ClientResponse, prompt: Prompt, hold: HoldText | None
    ) -> AsyncGenerator[ModelEvent]:
        answer, events, reader = self._open_answer(), SseParser(), PacedReader(response, hold, self._http.pauses)
        try:
            while chunk := await reader.read():
                for text in answer.read(events.feed(chunk)):
                    yield text
                if answer.is_done:
                    await _read_to_end(response)
                    break
                if answer.expects_text:
                    await reader.pause(answer.deltas, answer.chars)
            answer.close(events.rest())
            if not (answer.has_chunk or answer.is_done):
                raise NotAStreamError("The response has no event of an answer.")
        except Exception as error:  # as above
            raise failures.from_exception(
                error, self.provider, kinds=FAILURE_KINDS, midstream=bool(answer.texts)
            ) from error
        yield self._completed(answer, prompt)

    def _completed(self, answer: AnswerAssembly, prompt: Prompt) -> Completed:
        return call_result.build_completed(
            prompt,
            "".join(answer.texts),
            provider=self.provider,
            finish_reason=answer.outcome,
            uses=tuple(answer.tool_calls.uses()),
            token_counts=answer.token_counts,
            token_details=answer.token_details,
            logprobs=tuple(answer.logprobs),
        )


async def _read_to_end(response: aiohttp.ClientResponse) -> None:
    """Read the response to its end. The answer is complete, so an error only closes the connection."""
    with suppress(*RESPONSE_ERRORS):
        async with asyncio.timeout(END_TIMEOUT_SECONDS):
            while await read_available(response):
                pass
