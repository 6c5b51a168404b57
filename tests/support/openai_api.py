"""Requests by OpenAI's protocol: with the official client, or with plain HTTP for the stream."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai

from khala.store.postgres.database import Database
from tests.support.callers import Person, person
from tests.support.client import Thread
from tests.support.in_process import InProcessServer

TIMEOUT_SECONDS = 30.0
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def user(text: str) -> list[Any]:
    """A conversation of one message."""
    return [{"role": "user", "content": text}]


class Stream:
    """A stream that is read line by line."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.comments = 0
        self.done = False
        self._lines = response.aiter_lines()

    def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        return self._events()

    async def _events(self) -> AsyncIterator[dict[str, Any]]:
        async for line in self._lines:
            if line.startswith(":"):
                self.comments += 1
            elif line == "data: [DONE]":
                self.done = True
            elif line:
                assert not self.done, "an event came after the end"
                assert line.startswith("data: "), line
                yield json.loads(line.removeprefix("data: "))

    async def all(self) -> list[dict[str, Any]]:
        """All events to the end of the stream."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return [event async for event in self]

    async def until(self, kind: str) -> dict[str, Any]:
        """The next event of this type."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            async for event in self:
                if event.get("type") == kind:
                    return event
        raise AssertionError(f"no {kind} came")


class Requester:
    """A user with a token, and the official client with that token."""

    def __init__(self, inside: InProcessServer, person: Person) -> None:
        self.inside = inside
        self.person = person
        self.client = openai.AsyncOpenAI(base_url=f"{inside.url}/v1", api_key=person.token, max_retries=0)

    @classmethod
    async def new(cls, inside: InProcessServer, db: Database, **more: Any) -> "Requester":
        return cls(inside, await person(db, **more))

    async def ask(self, text: str, headers: dict[str, str] | None = None, **more: Any) -> Any:
        """A completion of one message."""
        request = {"model": "khala", "messages": user(text)} | more
        return await self.client.chat.completions.create(**request, extra_headers=headers)

    async def post(self, body: Any, **headers: str) -> httpx.Response:
        """POST a completion request without the official client."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.inside.http.post("/v1/chat/completions", json=body, headers=self.person.headers | named)

    @contextlib.asynccontextmanager
    async def stream(self, text: str, **headers: str) -> AsyncIterator[Stream]:
        """The stream of one message's answer; on autopilot unless the headers say otherwise."""
        named = {"x-autopilot": "true"} | {name.replace("_", "-"): value for name, value in headers.items()}
        body = {"model": "khala", "messages": user(text), "stream": True}
        async with self.inside.http.stream(
            "POST", "/v1/chat/completions", json=body, headers=self.person.headers | named, timeout=TIMEOUT_SECONDS
        ) as response:
            assert response.status_code == 200, await response.aread()
            yield Stream(response)

    async def events(self, text: str, **headers: str) -> list[dict[str, Any]]:
        """All events of a run on autopilot, until its end."""
        async with self.stream(text, **headers) as stream:
            events = await stream.all()
        assert stream.done
        return events

    async def get(self, path: str, **params: Any) -> Any:
        """GET a path; returns the JSON."""
        found = await self.inside.http.get(path, headers=self.person.headers, params=params)
        return found.raise_for_status().json()

    async def thread(self, thread_id: str) -> list[dict[str, Any]]:
        """The messages of a thread."""
        return list((await self.get(f"/api/threads/{thread_id}"))["messages"])

    async def ended(self, run_id: str) -> dict[str, Any]:
        """Wait until the run has ended; returns it."""
        thread = Thread(self.inside.http, "", "")
        thread.headers = self.person.headers
        return await thread.ended(run_id)

    async def allow(self, **actions: str) -> None:
        """Set the user's tool rules; `_all` stands for `*`."""
        items = [{"pattern": name.replace("_all", "*"), "action": action} for name, action in actions.items()]
        path = "/api/me/tool-rules"
        (await self.inside.http.put(path, json={"items": items}, headers=self.person.headers)).raise_for_status()
