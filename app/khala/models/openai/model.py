"""A model of OpenAI, or of a server that speaks its protocol, behind our port."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress

import aiohttp

from khala.models import call_result, failures
from khala.models.model_names import ModelRef
from khala.models.openai import error_responses, request_body
from khala.models.openai.answer_reader import DONE, AnswerReader
from khala.models.openai.http_client import BROKEN, KINDS, Http, more
from khala.models.openai.request_body import ChatQuirks
from khala.models.openai.sse_parser import SseParser
from khala.models.port import Completed, ModelEvent, Prompt

LINGER = 0.25
"""Seconds for which the end of a response is awaited after the answer's; a connection is used again only after it."""
FINISHES = {"length": "length", "content_filter": "content_filter"}
"""Finish reasons that are no plain end. Servers have many words for the others."""
SUCCESS = 200


class NoStream(ValueError):
    """A response was no stream of chunks."""


class ChatModel:
    """One model, called by chat completions."""

    reads_tools = True

    def __init__(self, http: Http, ref: ModelRef, quirks: ChatQuirks) -> None:
        self.name = ref.name
        self.provider: str = ref.provider
        self._http = http
        self._quirks = quirks

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """Call the model once. See `port.LanguageModel.stream`."""
        async with AsyncExitStack() as stack:
            try:
                called = self._http.post("chat/completions", request_body.of(prompt, self.name, self._quirks))
                response = await stack.enter_async_context(called)
                if response.status != SUCCESS:
                    raise await error_responses.read(response)
            except Exception as error:  # a border: the failure table names what it knows and keeps the rest as cause
                asked = failures.demands(prompt)
                raise failures.of(error, self.provider, kinds=KINDS, midstream=False, asked=asked) from error
            yield await stack.enter_async_context(aclosing(self._events(response, prompt)))

    async def _events(self, response: aiohttp.ClientResponse, prompt: Prompt) -> AsyncGenerator[ModelEvent]:
        answer = AnswerReader()
        events = SseParser()
        try:
            while piece := await more(response):
                for said in answer.read(events.feed(piece)):
                    yield said
                if answer.done:
                    await _finish(response)
                    break
            answer.done = answer.done or events.rest().startswith(DONE)
            if not (answer.begun or answer.done):
                raise NoStream("The response had no chunk of an answer in it.")
        except Exception as error:  # as above: whatever a broken stream raises, it ends as ModelFailed
            raise failures.of(error, self.provider, kinds=KINDS, midstream=bool(answer.heard)) from error
        yield self._completed(answer, prompt)

    def _completed(self, answer: AnswerReader, prompt: Prompt) -> Completed:
        counts = answer.counts
        return call_result.completed(
            prompt,
            "".join(answer.heard),
            provider=self.provider,
            reason=FINISHES.get(answer.finish, "stop") if answer.finish else "stop" if answer.done else None,
            uses=tuple(answer.calls.uses()),
            counts=(counts.prompt_tokens or 0, counts.completion_tokens or 0) if counts else (0, 0),
        )


async def _finish(response: aiohttp.ClientResponse) -> None:
    """Let the response end. The answer is whole already, so whatever goes wrong costs no more than the connection."""
    with suppress(*BROKEN):
        async with asyncio.timeout(LINGER):
            while await more(response):
                pass


def headers(key: str, organization: str | None, project: str | None) -> Iterable[tuple[str, str]]:
    """The headers of every request. They ask for no compression, because compression delays tokens."""
    yield "Authorization", f"Bearer {key}"
    yield from (("Content-Type", "application/json"), ("Accept-Encoding", "identity"), ("User-Agent", "khala"))
    if organization:
        yield "OpenAI-Organization", organization
    if project:
        yield "OpenAI-Project", project
