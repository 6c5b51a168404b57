"""`khala upgrade-check`: an older Khala and this one side by side on a database of their own, while people ask.

What it shows: this version migrates under the older one, each serves what the other wrote, and an answer that the older
one began ends whole when that is stopped. Takes a few minutes, and touches nothing but a temporary folder.
"""

import asyncio
import os
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import click
import httpx

from khala.operations.programs import OperationFailed
from khala.store.embedded import EmbeddedPostgres
from khala.store.postgres import migrations
from khala.store.postgres.database import Database

WORDS, PACE = 4800, 40
"""Of the answer that outlasts the upgrade: words, and words a second."""
QUESTIONS = 6
MAX_START_SECONDS = 120.0
MAX_ANSWER_SECONDS = 600.0
POLL_SECONDS = 0.2
ENDED = ("final", "error", "canceled")


async def check_upgrade(old: Path) -> None:
    """Play the upgrade through; `old` is the older Khala's program. Raises `OperationFailed` for what does not hold."""
    with tempfile.TemporaryDirectory(prefix="khala-upgrade-") as folder:
        postgres = await asyncio.to_thread(EmbeddedPostgres.start, Path(folder, "postgres"))
        try:
            await _play(old, Path(folder), postgres.url)
        finally:
            await asyncio.to_thread(postgres.stop)


async def _play(old: Path, folder: Path, url: str) -> None:
    env = {"DATABASE_URL": url, "KHALA_MODEL": "demo", "KHALA_LEASE_SECONDS": "3", "KHALA_GRACE_SECONDS": "1"}
    env |= {"KHALA_HOME": str(folder / "home"), "HOST": "127.0.0.1", "KHALA_LOG": "json"}
    new = [sys.executable, "-m", "khala"]
    async with AsyncExitStack() as stack:
        old_process, old_http = await stack.enter_async_context(_served(folder / "old.log", env, [str(old), "serve"]))
        click.echo(f"The older one serves at schema {await _schema(url)}.")
        thread = await _thread(old_http)
        sent = await _send(old_http, thread, f"/words={WORDS} /pace={PACE}")
        await _until(lambda: _said(old_http, thread), lambda text: len(text) > 100, MAX_START_SECONDS)
        _, http = await stack.enter_async_context(_served(folder / "new.log", env, [*new, "serve", "--no-executor"]))
        await stack.enter_async_context(_started(folder / "worker.log", env, [*new, "work"]))
        click.echo(f"This one serves at schema {await _schema(url)}, beside it.")
        for number in range(QUESTIONS):
            asked, read = (old_http, http) if number % 2 else (http, old_http)
            await _ask(asked, read, 20 + number)
        click.echo(f"{QUESTIONS} questions were asked of one and answered through the other.")
        if (await _run(http, thread, sent["runId"]))["status"] in ENDED:
            raise OperationFailed("The answer that was to outlast the upgrade ended before it.")
        old_process.send_signal(signal.SIGTERM)
        await _until(lambda: _run(http, thread, sent["runId"]), lambda run: run["status"] in ENDED, MAX_ANSWER_SECONDS)
        _same(await _said(http, thread), _numbered(WORDS))
        click.echo("The older one is gone, and the answer that it began has ended, word for word.")
        async with _started(folder / "verify.log", env, [*new, "verify"]) as verifying:
            if await verifying.wait() != 0:
                raise OperationFailed(f"`khala verify` finds differences:\n{(folder / 'verify.log').read_text()}")
    click.echo("Verified.")


async def _ask(asked: httpx.AsyncClient, read: httpx.AsyncClient, words: int) -> None:
    """Ask one and read the answer from the other."""
    thread = await _thread(asked)
    sent = await _send(asked, thread, f"/words={words}")
    await _until(lambda: _run(read, thread, sent["runId"]), lambda run: run["status"] in ENDED, MAX_ANSWER_SECONDS)
    _same(await _said(read, thread), _numbered(words))
    _same(await _said(asked, thread), _numbered(words))


def _numbered(count: int) -> str:
    """The demo model's answer of this many words."""
    return " ".join(f"word{number}" for number in range(1, count + 1))


def _same(found: str, wanted: str) -> None:
    if found != wanted:
        raise OperationFailed(
            f"An answer of {len(found):,} characters is not the one of {len(wanted):,} that was asked for."
        )


class _Thread(dict[str, str]):
    """A thread's id, and the key that opens it."""


async def _thread(http: httpx.AsyncClient) -> _Thread:
    made = (await http.post("/api/threads", json={})).raise_for_status().json()
    return _Thread(id=made["thread"]["id"], key=made["anonKey"])


async def _send(http: httpx.AsyncClient, thread: _Thread, text: str) -> dict[str, Any]:
    path = f"/api/threads/{thread['id']}/send"
    sent = await http.post(path, json={"text": text}, headers={"X-Anon-Key": thread["key"]})
    return dict(sent.raise_for_status().json())


async def _run(http: httpx.AsyncClient, thread: _Thread, run_id: str) -> dict[str, Any]:
    found = await http.get(f"/api/runs/{run_id}", headers={"X-Anon-Key": thread["key"]})
    return dict(found.raise_for_status().json())


async def _said(http: httpx.AsyncClient, thread: _Thread) -> str:
    """The text of the thread's last message, as far as it is there."""
    found = await http.get(f"/api/threads/{thread['id']}", headers={"X-Anon-Key": thread["key"]})
    blocks = found.raise_for_status().json()["messages"][-1].get("content", [])
    return "".join(block["text"] for block in blocks if block["type"] == "text")


async def _until(ask: Any, holds: Any, seconds: float) -> None:
    """Ask until it holds. Raises `OperationFailed` after so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            while not holds(await ask()):  # noqa: ASYNC110  # another process is asked, which has no event
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError as error:
        raise OperationFailed(f"What was waited for did not come in {seconds:.0f} s.") from error


@asynccontextmanager
async def _served(
    log: Path, env: dict[str, str], command: list[str]
) -> AsyncIterator[tuple[Process, httpx.AsyncClient]]:
    """A server, when it is ready, and a client of it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    async with (
        _started(log, env | {"PORT": str(port)}, command) as process,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http,
    ):
        await _until(lambda: _ready(process, http, log), bool, MAX_START_SECONDS)
        yield process, http


async def _ready(process: Process, http: httpx.AsyncClient, log: Path) -> bool:
    if process.returncode is not None:
        raise OperationFailed(f"A server ended by itself:\n{log.read_text()[-2000:]}")  # noqa: ASYNC240  # once, at the end
    try:
        return (await http.get("/api/health/ready")).status_code == 200
    except httpx.HTTPError:
        return False


@asynccontextmanager
async def _started(log: Path, env: dict[str, str], command: list[str]) -> AsyncIterator[Process]:
    """A process, which is ended at the end."""
    with log.open("ab") as out:  # a small file of a command that does nothing else
        process = await asyncio.create_subprocess_exec(*command, env=os.environ | env, stdout=out, stderr=out)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 30)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _schema(url: str) -> str | None:
    db = Database(url, pool_size=2)
    try:
        return await migrations.current(db)
    finally:
        await db.close()
