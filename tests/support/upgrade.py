"""An upgrade played through: an older Khala and this one side by side on one database, under people's eyes.

`python -m tests.support.upgrade OLD_TREE`, where OLD_TREE has the sources of the older one; `infra/upgrade_check.sh`
makes it of any commit. Both run with the packages of this one. Raises what does not hold.
"""

import asyncio
import shutil
import signal
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import httpx

from app.store import migrate
from app.store.db import Database
from app.store.embedded import EmbeddedPostgres
from tests.support.client import Observer, Thread, text_of
from tests.support.flight import assert_verified, numbered
from tests.support.server import Server, Worker, ended

WORDS, PACE = 2400, 40
"""An answer that takes a minute: longer than the upgrade."""
SENDS = 6


async def play(old_tree: Path, folder: Path, url: str) -> None:
    """The upgrade, step by step."""
    env = {"DATABASE_URL": url, "KHALA_MODEL": "demo", "KHALA_LEASE_SECONDS": "3", "KHALA_GRACE_SECONDS": "1"}
    env["KHALA_HOME"] = str(folder / "home")
    old = Server(folder / "old.log", env, anew=True)
    new = Server(folder / "new.log", env, "--no-executor", anew=True)
    worker = Worker(folder / "worker.log", env, anew=True)
    old.tree = old_tree
    with ended(old, new, worker):
        old.start()
        before = await at(url)
        async with AsyncExitStack() as stack:
            https = [await stack.enter_async_context(client(server)) for server in (old, new)]
            thread = await Thread.create(https[0])
            through_old = await stack.enter_async_context(Observer(old.socket_url, thread).following())
            sent = await thread.send(f"/words={WORDS} /pace={PACE}")
            answer = sent["assistantMessageId"]
            await through_old.until(lambda view: len(view.text(answer)) > 100)
            await asyncio.to_thread(new.start)
            say(f"the old one serves at {before}, the new one has migrated to {await at(url)}")
            worker.start()
            assert await asyncio.to_thread(lambda: worker.id)
            through_new = await stack.enter_async_context(Observer(new.socket_url, thread).following())
            await both_serve(https)
            assert answer not in through_old.view.finished, "the answer should outlast this"
            say(f"{SENDS} questions were asked by one and read by the other while an answer went on")
            await restarted(old)
            await asyncio.to_thread(old.kill, signal.SIGTERM)
            await through_new.until(lambda view: answer in view.finished, within=180)
            stored = text_of((await Thread(https[1], thread.id, thread.key).snapshot())["messages"][-1])
            assert stored == through_new.view.text(answer) == numbered(WORDS)
            assert numbered(WORDS).startswith(through_old.view.text(answer))
            say("the old one is gone, and the answer that it began has ended, word for word")
    for process in (new, worker):
        assert not process.crashes(), process.crashes()
    told(old)
    assert_verified(env)
    say("verified")


async def both_serve(https: list[httpx.AsyncClient]) -> None:
    """Questions are asked of one and answers read from the other, in turns, and nothing differs."""
    for number in range(SENDS):
        asked, read = https[number % 2], https[(number + 1) % 2]
        thread = await Thread.create(asked)
        sent = await thread.send(f"/words={20 + number}")
        elsewhere = Thread(read, thread.id, thread.key)
        assert (await elsewhere.ended(sent["runId"]))["status"] == "final"
        one, other = await thread.snapshot(), await elsewhere.snapshot()
        assert text_of(other["messages"][-1]) == numbered(20 + number)
        assert [text_of(message) for message in one["messages"]] == [text_of(message) for message in other["messages"]]


async def restarted(old: Server) -> None:
    """The old one dies and is started again by whoever watches it, on a schema that is newer than itself."""
    old.kill()
    try:
        await asyncio.to_thread(old.start)
    except AssertionError:
        # Versions before `migrate.upgrade` left newer schemas alone.
        if "Can't locate revision" not in old.log.read_text():
            raise
        say("NOTE: the old one can't be started again on the new schema: an upgrade from it must not stop half-way")
        return
    say("the old one was killed, and has started again on the new schema")


def told(old: Server) -> None:
    """What went wrong in the old one, which can't be mended any more."""
    known = "cached statement plan is invalid", "Can't locate revision", "Traceback (most recent call last):"
    crashes = old.crashes()
    assert all(any(words in line for words in known) for line in crashes), crashes
    stale = sum(known[0] in line for line in crashes)
    if stale:
        say(f"NOTE: {stale} of the old one's transactions failed as the schema changed, and were tried again")


def client(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, timeout=30)


async def at(url: str) -> str | None:
    """The schema's revision."""
    db = Database(url)
    try:
        return await migrate.current(db)
    finally:
        await db.close()


def say(text: str) -> None:
    print(text, flush=True)


def main(old_tree: str) -> None:
    """Play it through, with a Postgres and a folder of its own; both are gone afterwards, unless it fails."""
    folder = Path(tempfile.mkdtemp(prefix="khala-upgrade-"))
    postgres = EmbeddedPostgres.start(folder / "postgres")
    try:
        asyncio.run(play(Path(old_tree).absolute(), folder, postgres.url))
    except BaseException:
        print(f"The logs are in {folder}", file=sys.stderr)
        raise
    finally:
        postgres.stop()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1])
