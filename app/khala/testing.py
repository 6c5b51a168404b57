"""Runs Khala in the tests of an application: the real server, with a Postgres of its own and the demo model.

```python
with khala_server(home=tmp_path) as server:
    assert server.ask("app:counter", "two words").text == "You wrote 2 words."
```
"""

import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import httpx

START_TIMEOUT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 15.0
POLL_INTERVAL_SECONDS = 0.05
ENDED = ("final", "error", "canceled")
ADDRESS_LINE = "Khala is at "
MAX_LOG_CHARACTERS = 4_000
DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "DATABASE_URL": "",
        "HOST": "127.0.0.1",
        "PORT": "0",
        "KHALA_MODEL": "demo",
        "KHALA_WELCOME": "",
        "KHALA_PUBLIC_URL": "",
        "KHALA_GRACE_SECONDS": "0",
        "KHALA_LOG": "text",
    }
)
"""Settings of the server, over those of the project."""


class AgentAnswer:
    """The answer to one message. `content` has its blocks, as `docs/protocol.md` describes them."""

    def __init__(self, status: str, content: Sequence[Mapping[str, Any]]) -> None:
        self.status = status
        self.content = content

    @property
    def text(self) -> str:
        """The text of the answer."""
        return "".join(block["text"] for block in self.content if block["type"] == "text")

    @property
    def tools(self) -> list[str]:
        """The names of the steps and tools that were called, in their order."""
        return [block["tool"] for block in self.content if block["type"] == "tool"]


class KhalaServer:
    """A running server. `url` is its address, for clients of the test's own."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, agent: str, text: str, *, timeout: float = 30.0) -> AgentAnswer:
        """Ask an agent as a guest, in a new thread, and wait for the answer. `timeout` is in seconds.

        Raises `TimeoutError`, and `httpx.HTTPStatusError` if the server refuses the message.
        """
        key = secrets.token_urlsafe(32)
        deadline = time.monotonic() + timeout
        with httpx.Client(
            base_url=f"{self.url}/api", headers={"X-Anon-Key": key}, timeout=timeout, trust_env=False
        ) as http:
            thread = _json(http.post("/threads", json={"anonKey": key}))["thread"]["id"]
            run = _json(http.post(f"/threads/{thread}/send", json={"text": text, "options": {"agent": agent}}))["runId"]
            while (status := _json(http.get(f"/runs/{run}"))["status"]) not in ENDED:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"The run is {status} after {timeout:g} s.")
                time.sleep(POLL_INTERVAL_SECONDS)
            return AgentAnswer(status, _json(http.get(f"/threads/{thread}"))["messages"][-1]["content"])


@contextmanager
def khala_server(
    *, home: Path, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[KhalaServer]:
    """Run `khala serve` while this is open, on a free port.

    `home`: a folder for its data, such as pytest's `tmp_path`. `folder`: the project's, by default the working
    directory; its `khala.toml` names the modules of agents. `environment`: further settings. Raises `RuntimeError` with
    the end of the log if the server does not start.
    """
    home.mkdir(parents=True, exist_ok=True)
    log = home / "server.log"
    settings = {**os.environ, **DEFAULTS, "KHALA_HOME": str(home), **(environment or {})}
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "khala", "serve"],
            cwd=folder,
            env=settings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            yield KhalaServer(_address(process, log))
        finally:
            _end(process)


def _address(process: "subprocess.Popen[str]", log: Path) -> str:
    """The address that the server prints when it is ready."""
    assert process.stdout is not None
    lines: list[str] = []
    reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
    reader.start()
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline and reader.is_alive():
        for line in lines:
            if line.startswith(ADDRESS_LINE):
                return line.removeprefix(ADDRESS_LINE).strip()
        time.sleep(POLL_INTERVAL_SECONDS)
    raise RuntimeError(f"Khala did not start:\n{log.read_text(errors='replace')[-MAX_LOG_CHARACTERS:]}")


def _read(stream: IO[str], lines: list[str]) -> None:
    """Read to the end, so that the server never waits for its output to be read."""
    for line in stream:
        if not any(known.startswith(ADDRESS_LINE) for known in lines):
            lines.append(line)


def _end(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _json(response: httpx.Response) -> Any:
    return response.raise_for_status().json()
