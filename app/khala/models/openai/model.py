"""The language model port for OpenAI and servers that speak its protocol."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress

import aiohttp

from khala.models import call_result, failures
from khala.models.model_names import ModelRef
from khala.models.openai import error_responses, request_body
from khala.models.openai.answer_reader import DONE_EVENT, AnswerReader
from khala.models.openai.http_client import FAILURE_KINDS, RESPONSE_ERRORS, HttpClient, read_available
from khala.models.openai.paced_reader import PacedReader
from khala.models.openai.request_body import ChatQuirks
from khala.models.openai.sse_parser import SseParser
from khala.models.port import Completed, HoldText, ModelEvent, Prompt

END_TIMEOUT_SECONDS = 0.25
"""Time to wait for the end of a response after the end of the answer. Only then can the connection be used again."""
FINISH_REASONS = {"length": "length", "content_filter": "content_filter"}
"""Finish reasons other than `stop`. Any other value counts as `stop`, because servers use many words for it."""
SUCCESS = 200


class NotAStreamError(ValueError):
    """A response is not a stream of chunks."""


class ChatModel:
    """One model, called over the chat completions API."""

    reads_tools = True

    def __init__(self, http: HttpClient, ref: ModelRef, quirks: ChatQuirks) -> None:
        self.name = ref.name
        self.provider: str = ref.provider
        self._http = http
        self._quirks = quirks

    @asynccontextmanager
    async def stream(self, prompt: Prompt, hold: HoldText | None = None) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """Call the model once. See `port.LanguageModel.stream`."""
        async with AsyncExitStack() as stack:
            try:
                body = request_body.encode(prompt, self.name, self._quirks)
                response = await stack.enter_async_context(self._http.post("chat/completions", body))
                if response.status != SUCCESS:
                    raise await error_responses.read(response)
            except Exception as error:  # any other error of the library becomes the cause of a ModelFailed
                abilities = failures.required_abilities(prompt)
                raise failures.from_exception(
                    error, self.provider, kinds=FAILURE_KINDS, midstream=False, abilities=abilities
                ) from error
            yield await stack.enter_async_context(aclosing(self._events(response, prompt, hold)))

    async def _events(
        self, response: aiohttp.ClientResponse, prompt: Prompt, hold: HoldText | None
    ) -> AsyncGenerator[ModelEvent]:
        answer, events, reader = AnswerReader(), SseParser(), PacedReader(response, hold)
        try:
            while chunk := await reader.read():
                for text in answer.read(events.feed(chunk)):
                    yield text
                if answer.is_done:
                    await _read_to_end(response)
                    break
                if answer.expects_text:
                    await reader.pause(answer.deltas, answer.chars)
            answer.is_done = answer.is_done or events.rest().startswith(DONE_EVENT)
            if not (answer.has_chunk or answer.is_done):
                raise NotAStreamError("The response has no chunk of an answer.")
        except Exception as error:  # as above
            raise failures.from_exception(
                error, self.provider, kinds=FAILURE_KINDS, midstream=bool(answer.texts)
            ) from error
        yield self._completed(answer, prompt)

    def _completed(self, answer: AnswerReader, prompt: Prompt) -> Completed:
        usage = answer.usage
        reason = answer.finish_reason
        return call_result.build_completed(
            prompt,
            "".join(answer.texts),
            provider=self.provider,
            finish_reason=FINISH_REASONS.get(reason, "stop") if reason else "stop" if answer.is_done else None,
            uses=tuple(answer.tool_calls.uses()),
            token_counts=(usage.prompt_tokens or 0, usage.completion_tokens or 0) if usage else (0, 0),
        )


async def _read_to_end(response: aiohttp.ClientResponse) -> None:
    """Read the response to its end. The answer is complete, so an error only closes the connection."""
    with suppress(*RESPONSE_ERRORS):
        async with asyncio.timeout(END_TIMEOUT_SECONDS):
            while await read_available(response):
                pass


def headers(key: str, organization: str | None, project: str | None) -> Iterable[tuple[str, str]]:
    """The headers of every request. They ask for no compression, because compression delays tokens."""
    yield "Authorization", f"Bearer {key}"
    yield from (("Content-Type", "application/json"), ("Accept-Encoding", "identity"), ("User-Agent", "khala"))
    if organization:
        yield "OpenAI-Organization", organization
    if project:
        yield "OpenAI-Project", project
