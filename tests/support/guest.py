"""A guest of a server that runs in another process: sends messages to agents, and waits for their answers."""

import time
from collections.abc import Callable
from typing import Any

import httpx

from tests.support.client import NO_TLS

TIMEOUT_SECONDS = 30.0


class Guest:
    """A guest's thread."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=f"{url}/api", timeout=TIMEOUT_SECONDS, verify=NO_TLS)
        made = self.http.post("/threads", json={}).raise_for_status().json()
        self.thread = made["thread"]["id"]
        self.http.headers["X-Anon-Key"] = made["anonKey"]

    def send(self, agent: str, text: str = "Hello") -> str:
        """Send a message to the agent; returns the run's id."""
        body = {"text": text, "options": {"agent": agent}}
        return str(self.http.post(f"/threads/{self.thread}/send", json=body).raise_for_status().json()["runId"])

    def answer(self) -> str:
        """The text of the newest answer, once its run has ended."""
        return _text_of(self._wait(lambda message: message["status"] == "final"))

    def wait_for(self, text: str) -> None:
        """Wait until the newest answer has this text."""
        self._wait(lambda message: text in _text_of(message))

    def approve(self, run: str) -> None:
        """Wait until the run asks for an approval, and approve."""
        blocked = self._wait(lambda message: any(map(_is_blocked, message["content"] or ())))
        (call,) = filter(_is_blocked, blocked["content"])
        path = f"/runs/{run}/approvals/{call['toolCallId']}"
        self.http.post(path, json={"approved": True}).raise_for_status()

    def _wait(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            message = self.http.get(f"/threads/{self.thread}").raise_for_status().json()["messages"][-1]
            if wanted(message):
                return dict(message)
            assert time.monotonic() < deadline, message
            time.sleep(0.05)


def _is_blocked(block: dict[str, Any]) -> bool:
    return block.get("state") == "blocked"


def _text_of(message: dict[str, Any]) -> str:
    return "".join(block.get("text", "") for block in message["content"] or ())
