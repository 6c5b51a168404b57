"""An answer on its way under the eyes of two observers, and what must be true of it when it has landed."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

import httpx

from tests.support.client import Observer, Thread, View, text_of
from tests.support.server import command


class Served(Protocol):
    """Somebody who serves Khala, in this process or in another one."""

    url: str
    socket_url: str


class Flight:
    """One run that says `words` numbered words, and two observers of its thread."""

    def __init__(
        self, thread: Thread, sent: Mapping[str, Any], observers: tuple[Observer, Observer], words: int
    ) -> None:
        self.thread = thread
        self.observers = observers
        self.words = words
        self.run_id: str = sent["runId"]
        self.answer: str = sent["assistantMessageId"]

    def seen(self) -> str:
        """What the observer that knows more has seen of the answer."""
        return max((observer.view.text(self.answer) for observer in self.observers), key=len)

    async def reached(self, word: int, *, within: float = 15.0) -> None:
        """Wait until both observers have seen this word."""

        def there(view: View) -> bool:
            return f"word{word} " in view.text(self.answer)

        for observer in self.observers:
            await observer.until(there, within=within)

    async def landed(self, *, status: str = "final", text: str | None = None, within: float = 30.0) -> dict[str, Any]:
        """Wait for the end, and hold all that anybody knows of the answer against each other; returns the message.

        `text` is what the answer must be; without it, all its words, exactly.
        """
        run = await self.thread.ended(self.run_id, within=within)
        assert run["status"] == status
        for observer in self.observers:
            await observer.until(lambda view: self.answer in view.finished, within=5)
        parts = await self.thread.parts(self.run_id)
        message: dict[str, Any] = next(
            one for one in (await self.thread.snapshot())["messages"] if one["id"] == self.answer
        )
        self._agree(parts, message, numbered(self.words) if text is None else text)
        assert message["status"] == status
        return message

    def _agree(self, parts: list[dict[str, Any]], message: dict[str, Any], text: str) -> None:
        assert [part["seq"] for part in parts] == list(range(len(parts)))
        assert [part["seq"] for part in parts if part["kind"] == "finish"] == [len(parts) - 1]
        assert message["seq"] == len(parts)
        for one, other in zip(self.observers, self.observers[1:], strict=False):
            assert one.view.text(self.answer) == other.view.text(self.answer)
        assert text_of(message) == self.seen()
        assert "".join(part["data"]["text"] for part in parts if part["kind"] == "text-delta") == self.seen()
        assert self.seen() == text


def numbered(count: int) -> str:
    """What the demo model says to `/words=`."""
    return " ".join(f"word{number}" for number in range(1, count + 1))


def notices(message: Mapping[str, Any]) -> list[str]:
    """The codes of the notices in a message's content."""
    return [block["code"] for block in message["content"] if block["type"] == "notice"]


@contextlib.asynccontextmanager
async def flight(server: Served, *, words: int = 240, pace: int = 60, more: str = "") -> AsyncIterator[Flight]:
    """Send a message of a new thread that two observers follow already; `more` is added to it."""
    async with watched(server) as (thread, one, two):
        sent = await thread.send(f"/words={words} /pace={pace} {more}")
        yield Flight(thread, sent, (one, two), words)


@contextlib.asynccontextmanager
async def watched(server: Served) -> AsyncIterator[tuple[Thread, Observer, Observer]]:
    """A new thread and two observers who know all that is in it."""
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        thread = await Thread.create(http)
        one, two = Observer(server.socket_url, thread), Observer(server.socket_url, thread)
        async with one.following(), two.following():
            for observer in (one, two):
                await observer.until(lambda view: view.revision is not None)
            yield thread, one, two


def assert_verified(env: Mapping[str, str]) -> None:
    """What is stored is what its parts fold to: `khala verify` says so."""
    done = command(env, "verify")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 differences" in done.stdout
