"""A run with two observers, and the checks of its answer at the end."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

import httpx

from tests.support.client import Observer, Thread, View, text_of
from tests.support.server import command


class Served(Protocol):
    """A Khala server, in this process or in another one."""

    url: str
    socket_url: str


class ObservedRun:
    """One run with an answer of `words` numbered words, and two observers of its thread."""

    def __init__(
        self, thread: Thread, sent: Mapping[str, Any], observers: tuple[Observer, Observer], words: int
    ) -> None:
        self.thread = thread
        self.observers = observers
        self.words = words
        self.run_id: str = sent["runId"]
        self.answer: str = sent["assistantMessageId"]

    def known_text(self) -> str:
        """The text of the answer that the observer with more text has."""
        return max((observer.view.text(self.answer) for observer in self.observers), key=len)

    async def wait_for_word(self, word: int, *, within: float = 15.0) -> None:
        """Wait until both observers have received this word."""

        def has_word(view: View) -> bool:
            return f"word{word} " in view.text(self.answer)

        for observer in self.observers:
            await observer.until(has_word, within=within)

    async def check_end(
        self, *, status: str = "final", text: str | None = None, within: float = 30.0
    ) -> dict[str, Any]:
        """Wait for the end, and check that parts, message and observers agree; returns the message.

        The answer must be `text`, or by default all its words.
        """
        run = await self.thread.ended(self.run_id, within=within)
        assert run["status"] == status
        for observer in self.observers:
            await observer.until(lambda view: self.answer in view.finished, within=5)
        parts = await self.thread.parts(self.run_id)
        message: dict[str, Any] = next(
            message for message in (await self.thread.snapshot())["messages"] if message["id"] == self.answer
        )
        self._assert_equal(parts, message, numbered(self.words) if text is None else text)
        assert message["status"] == status
        return message

    def _assert_equal(self, parts: list[dict[str, Any]], message: dict[str, Any], text: str) -> None:
        assert [part["seq"] for part in parts] == list(range(len(parts)))
        assert [part["seq"] for part in parts if part["kind"] == "finish"] == [len(parts) - 1]
        assert message["seq"] == len(parts)
        for one, other in zip(self.observers, self.observers[1:], strict=False):
            assert one.view.text(self.answer) == other.view.text(self.answer)
        assert text_of(message) == self.known_text()
        assert "".join(part["data"]["text"] for part in parts if part["kind"] == "text-delta") == self.known_text()
        assert self.known_text() == text


def numbered(count: int) -> str:
    """The answer of the demo model to `/words=`."""
    return " ".join(f"word{number}" for number in range(1, count + 1))


def notices(message: Mapping[str, Any]) -> list[str]:
    """The codes of the notices in a message's content."""
    return [block["code"] for block in message["content"] if block["type"] == "notice"]


@contextlib.asynccontextmanager
async def observed_run(
    server: Served, *, words: int = 240, pace: int = 60, more: str = ""
) -> AsyncIterator[ObservedRun]:
    """Send a message to a new thread that two observers already follow; `more` is appended to the message."""
    async with observed_thread(server) as (thread, one, two):
        sent = await thread.send(f"/words={words} /pace={pace} {more}")
        yield ObservedRun(thread, sent, (one, two), words)


@contextlib.asynccontextmanager
async def observed_thread(server: Served) -> AsyncIterator[tuple[Thread, Observer, Observer]]:
    """A new thread and two observers that are up to date."""
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        thread = await Thread.create(http)
        one, two = Observer(server.socket_url, thread), Observer(server.socket_url, thread)
        async with one.following(), two.following():
            for observer in (one, two):
                await observer.until(lambda view: view.revision is not None)
            yield thread, one, two


def assert_verified(env: Mapping[str, str]) -> None:
    """Check with `khala verify` that the stored messages are what their parts fold to."""
    done = command(env, "verify")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 differences" in done.stdout
