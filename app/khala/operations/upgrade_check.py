"""`khala upgrade-check`: runs an older Khala and this one side by side on a temporary database, and sends messages.

It checks that this version migrates the database while the older one runs, that each version serves the answers of the
other, and that an answer of the older version is completed after that version stops. It takes a few minutes and writes
only to a temporary folder.
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

ANSWER_WORDS = 4800
"""Length of the answer that lasts longer than the upgrade."""
WORDS_PER_SECOND = 40
QUESTIONS = 6
MAX_START_SECONDS = 120.0
MAX_ANSWER_SECONDS = 600.0
POLL_SECONDS = 0.2
ENDED = ("final", "error", "canceled")


async def check_upgrade(old: Path) -> None:
    """Rehearse the upgrade. `old`: the older Khala's program. Raises `OperationFailed` if a check fails."""
    with tempfile.TemporaryDirectory(prefix="khala-upgrade-") as folder:
        postgres = await asyncio.to_thread(EmbeddedPostgres.start, Path(folder, "postgres"))
        try:
            await _rehearse(old, Path(folder), postgres.url)
        finally:
            await asyncio.to_thread(postgres.stop)


async def _rehearse(old: Path, folder: Path, url: str) -> None:
    env = {"DATABASE_URL": url, "KHALA_MODEL": "demo", "KHALA_LEASE_SECONDS": "3", "KHALA_GRACE_SECONDS": "1"}
    env |= {"KHALA_HOME": str(folder / "home"), "HOST": "127.0.0.1", "KHALA_LOG": "json"}
    new = [sys.executable, "-m", "khala"]
    async with AsyncExitStack() as stack:
        old_process, old_http = await stack.enter_async_context(_served(folder / "old.log", env, [str(old), "serve"]))
        click.echo(f"The older version serves with schema {await _schema(url)}.")
        thread = await _create_thread(old_http)
        sent = await _send(old_http, thread, f"/words={ANSWER_WORDS} /pace={WORDS_PER_SECOND}")
        await _wait_until(lambda: _answer(old_http, thread), lambda text: len(text) > 100, MAX_START_SECONDS)
        _, http = await stack.enter_async_context(_served(folder / "new.log", env, [*new, "serve", "--no-executor"]))
        await stack.enter_async_context(_started(folder / "worker.log", env, [*new, "work"]))
        click.echo(f"This version serves beside it, with schema {await _schema(url)}.")
        for number in range(QUESTIONS):
            writer, reader = (old_http, http) if number % 2 else (http, old_http)
            await _check_answer(writer, reader, 20 + number)
        click.echo(f"{QUESTIONS} messages were sent to one version, and their answers read from the other.")
        if (await _run(http, thread, sent["runId"]))["status"] in ENDED:
            raise OperationFailed("The long answer ended before the upgrade, so nothing was checked.")
        old_process.send_signal(signal.SIGTERM)
        await _wait_until(
            lambda: _run(http, thread, sent["runId"]), lambda run: run["status"] in ENDED, MAX_ANSWER_SECONDS
        )
        _check_equal(await _answer(http, thread), _numbered(ANSWER_WORDS))
        click.echo("The older version has stopped, and its answer was completed without a change.")
        async with _started(folder / "verify.log", env, [*new, "verify"]) as verifying:
            if await verifying.wait() != 0:
                raise OperationFailed(f"`khala verify` finds differences:\n{(folder / 'verify.log').read_text()}")
    click.echo("Verified.")


async def _check_answer(writer: httpx.AsyncClient, reader: httpx.AsyncClient, words: int) -> None:
    """Send a message to one version, and check the answer in both."""
    thread = await _create_thread(writer)
    sent = await _send(writer, thread, f"/words={words}")
    await _wait_until(
        lambda: _run(reader, thread, sent["runId"]), lambda run: run["status"] in ENDED, MAX_ANSWER_SECONDS
    )
    _check_equal(await _answer(reader, thread), _numbered(words))
    _check_equal(await _answer(writer, thread), _numbered(words))


def _numbered(count: int) -> str:
    """The demo model's answer of this many words."""
    return " ".join(f"word{number}" for number in range(1, count + 1))


def _check_equal(text: str, expected: str) -> None:
    if text != expected:
        raise OperationFailed(
            f"An answer of {len(text):,} characters differs from the expected one of {len(expected):,}."
        )


class _Thread(dict[str, str]):
    """A thread's id, and the key that opens it."""


async def _create_thread(http: httpx.AsyncClient) -> _Thread:
    created = (await http.post("/api/threads", json={})).raise_for_status().json()
    return _Thread(id=created["thread"]["id"], key=created["anonKey"])


async def _send(http: httpx.AsyncClient, thread: _Thread, text: str) -> dict[str, Any]:
    path = f"/api/threads/{thread['id']}/send"
    sent = await http.post(path, json={"text": text}, headers={"X-Anon-Key": thread["key"]})
    return dict(sent.raise_for_status().json())


async def _run(http: httpx.AsyncClient, thread: _Thread, run_id: str) -> dict[str, Any]:
    response = await http.get(f"/api/runs/{run_id}", headers={"X-Anon-Key": thread["key"]})
    return dict(response.raise_for_status().json())


async def _answer(http: httpx.AsyncClient, thread: _Thread) -> str:
    """The text of the thread's last message, which may be incomplete."""
    response = await http.get(f"/api/threads/{thread['id']}", headers={"X-Anon-Key": thread["key"]})
    blocks = response.raise_for_status().json()["messages"][-1].get("content", [])
    return "".join(block["text"] for block in blocks if block["type"] == "text")


async def _wait_until(read: Any, condition: Any, seconds: float) -> None:
    """Wait until the condition holds for the result of `read`. Raises `OperationFailed` after the timeout."""
    try:
        async with asyncio.timeout(seconds):
            while not condition(await read()):  # noqa: ASYNC110  # state of another process, which has no event
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError as error:
        raise OperationFailed(f"An expected state was not reached in {seconds:.0f} s.") from error


@asynccontextmanager
async def _served(
    log: Path, env: dict[str, str], command: list[str]
) -> AsyncIterator[tuple[Process, httpx.AsyncClient]]:
    """Start a server and wait until it is ready. Yields its process and a client."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    async with (
        _started(log, env | {"PORT": str(port)}, command) as process,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http,
    ):
        await _wait_until(lambda: _ready(process, http, log), bool, MAX_START_SECONDS)
        yield process, http


async def _ready(process: Process, http: httpx.AsyncClient, log: Path) -> bool:
    if process.returncode is not None:
        raise OperationFailed(f"A server ended unexpectedly:\n{log.read_text()[-2000:]}")  # noqa: ASYNC240  # once, at the end
    try:
        return (await http.get("/api/health/ready")).status_code == 200
    except httpx.HTTPError:
        return False


@asynccontextmanager
async def _started(log: Path, env: dict[str, str], command: list[str]) -> AsyncIterator[Process]:
    """Start a process, and terminate it on exit."""
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
