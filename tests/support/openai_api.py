"""Somebody who asks as OpenAI's clients do: by the official client, or by the bytes of the stream."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai

from khala.store.postgres.database import Database
from tests.support.cast import Person, person
from tests.support.client import Thread
from tests.support.inside import Inside

WITHIN = 30.0
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
    """A stream as it comes, line by line."""

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
                assert not self.done, "something comes after the end"
                assert line.startswith("data: "), line
                yield json.loads(line.removeprefix("data: "))

    async def all(self) -> list[dict[str, Any]]:
        """All events to the end of the stream."""
        async with asyncio.timeout(WITHIN):
            return [event async for event in self]

    async def until(self, kind: str) -> dict[str, Any]:
        """The next event of this type."""
        async with asyncio.timeout(WITHIN):
            async for event in self:
                if event.get("type") == kind:
                    return event
        raise AssertionError(f"no {kind} came")


class Requester:
    """A user with a token, and the official client that bears it."""

    def __init__(self, inside: Inside, who: Person) -> None:
        self.inside = inside
        self.who = who
        self.client = openai.AsyncOpenAI(base_url=f"{inside.url}/v1", api_key=who.token, max_retries=0)

    @classmethod
    async def new(cls, inside: Inside, db: Database, **more: Any) -> "Requester":
        return cls(inside, await person(db, **more))

    async def ask(self, text: str, headers: dict[str, str] | None = None, **more: Any) -> Any:
        """A completion of one message."""
        asked = {"model": "khala", "messages": user(text)} | more
        return await self.client.chat.completions.create(**asked, extra_headers=headers)

    async def post(self, body: Any, **headers: str) -> httpx.Response:
        """The same without any client's help."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.inside.http.post("/v1/chat/completions", json=body, headers=self.who.headers | named)

    @contextlib.asynccontextmanager
    async def stream(self, text: str, **headers: str) -> AsyncIterator[Stream]:
        """The stream of one message's answer; on autopilot unless the headers say otherwise."""
        named = {"x-autopilot": "true"} | {name.replace("_", "-"): value for name, value in headers.items()}
        body = {"model": "khala", "messages": user(text), "stream": True}
        async with self.inside.http.stream(
            "POST", "/v1/chat/completions", json=body, headers=self.who.headers | named, timeout=WITHIN
        ) as response:
            assert response.status_code == 200, await response.aread()
            yield Stream(response)

    async def events(self, text: str, **headers: str) -> list[dict[str, Any]]:
        """All events of a run on autopilot, which has come to its end."""
        async with self.stream(text, **headers) as stream:
            told = await stream.all()
        assert stream.done
        return told

    async def get(self, path: str, **params: Any) -> Any:
        """What is there."""
        found = await self.inside.http.get(path, headers=self.who.headers, params=params)
        return found.raise_for_status().json()

    async def thread(self, thread_id: str) -> list[dict[str, Any]]:
        """The messages of a thread."""
        return list((await self.get(f"/api/threads/{thread_id}"))["messages"])

    async def ended(self, run_id: str) -> dict[str, Any]:
        """The run, once it has ended."""
        thread = Thread(self.inside.http, "", "")
        thread.headers = self.who.headers
        return await thread.ended(run_id)

    async def allow(self, **actions: str) -> None:
        """What becomes of the user's calls; `_all` stands for any further letters."""
        items = [{"pattern": name.replace("_all", "*"), "action": action} for name, action in actions.items()]
        path = "/api/me/tool-rules"
        (await self.inside.http.put(path, json={"items": items}, headers=self.who.headers)).raise_for_status()
