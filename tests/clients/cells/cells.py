"""Runs the cells of one client's row in the matrix of clients, and prints their results as JSON.

A program registers a function for each feature. The function uses the client as its documentation says, asserts what it
gets, and returns nothing or a `Result`. A failed assertion, any other error or 60 s without an end is a failure.
"""

import asyncio
import inspect
import json
import os
import signal
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple

SERVER = os.environ["KHALA_URL"]
BASE_URL = f"{SERVER}/v1"
TOKEN = os.environ["KHALA_TOKEN"]
SPENT_TOKEN = os.environ["KHALA_SPENT_TOKEN"]
"""The token of an account that has used up its tokens of the day."""
PROVIDER_MODEL = os.environ["KHALA_PROVIDER_MODEL"]
"""A model of the scripted provider, which speaks OpenAI's protocol."""
CELL_TIMEOUT_SECONDS = 60
PNG = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
WORDS = "word1 word2 word3 word4 word5"
CALL = '/call weather {"city": "Aiur"} /say It is fine.'
CITY_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "population": {"type": "integer"}},
    "required": ["name", "population"],
    "additionalProperties": False,
}


class Result(NamedTuple):
    """The state of a cell: `works`, `refused`, `ignored` or `absent`; `words` are those that the client shows."""

    state: str
    note: str = ""
    words: tuple[str, ...] = ()


_cells: dict[str, Callable[[], Any]] = {}


def cell(feature: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register the function, which may be a coroutine function, for this feature."""

    def register(function: Callable[[], Any]) -> Callable[[], Any]:
        _cells[feature] = function
        return function

    return register


def absent(feature: str, note: str) -> None:
    """Declare that the client does not have this feature, and why."""
    _cells[feature] = lambda: Result("absent", note)


def works(note: str = "", *words: str) -> Result:
    """The feature works; `words` are messages that the client shows."""
    return Result("works", note, words)


def refused(*words: str, note: str = "") -> Result:
    """The server refuses the feature with these words, as the client shows them."""
    assert all(words)
    return Result("refused", note, words)


def ignored(note: str) -> Result:
    """The request succeeds, and the feature has no effect."""
    return Result("ignored", note)


def failure(kind: type[BaseException], call: Callable[[], Any]) -> str:
    """The message of the error of this kind that the call raises."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")


def get(path: str) -> Any:
    """GET a path of the server with the account's token."""
    request = urllib.request.Request(SERVER + path, headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def status_of(prompt: str) -> str:
    """The status of the answer to the newest message with this text, which begins a thread."""
    for thread in get("/api/threads?limit=20")["items"]:
        messages = get(f"/api/threads/{thread['id']}")["messages"]
        if messages and any(block.get("text") == prompt for block in messages[-2:][0]["content"]):
            return str(messages[-1]["status"])
    raise AssertionError(f"no thread has the message {prompt!r}")


def is_canceled(prompt: str) -> bool:
    """Whether the answer to this message is canceled within 15 s."""
    deadline = time.monotonic() + 15
    while (status := status_of(prompt)) in ("draft", "streaming"):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return status == "canceled"


def run() -> None:
    """Run all cells in order, and print the results."""
    signal.signal(signal.SIGALRM, _time_out)
    results = {feature: _result(feature, function) for feature, function in _cells.items()}
    sys.stdout.write(json.dumps(results) + "\n")


def _time_out(number: int, frame: Any) -> None:
    raise TimeoutError(f"not finished after {CELL_TIMEOUT_SECONDS} s")


def _result(feature: str, function: Callable[[], Any]) -> dict[str, Any]:
    signal.alarm(CELL_TIMEOUT_SECONDS)
    try:
        found = asyncio.run(function()) if inspect.iscoroutinefunction(function) else function()
    except BaseException:
        sys.stderr.write(f"{feature}:\n{traceback.format_exc()}\n")
        return {"state": "failed", "note": traceback.format_exc(limit=-3)}
    finally:
        signal.alarm(0)
    return {name: value for name, value in (found or Result("works"))._asdict().items() if value}
