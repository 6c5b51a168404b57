"""Benchmark of the page: `python -m tests.bench.page`. How text and letters appear, a storm of updates, and memory.

It uses one Chromium, one server and one Postgres on this machine. A user types into the same page twice: while nothing
else happens, and while 500 tool calls report progress, 20 of them every 16 ms. The ratio compares the two.
"""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import CDPSession, Page, expect

from khala.store.postgres.database import Database
from tests.bench.counters import percentile
from tests.bench.page_text import text_flow
from tests.bench.page_typing import typing
from tests.support import postgres
from tests.support.browser_page import RECORD_FRAMES, opened, storm_on
from tests.support.client import Thread
from tests.support.server import Server, ended

TASKS = 500
DETAILS = 100
DETAIL_BYTES = 50_000
KEYS_PER_SECOND = 8


async def smoothness(db: Database, server: Server, seconds: float) -> dict[str, Any]:
    """Frame times and long tasks while a user types, without and with a storm."""
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        thread = await Thread.create(http)
        async with opened(server, thread) as page:
            storm = await storm_on(db, thread, tasks=TASKS)
            await storm.begin()
            await expect(page.locator(".group-head").first).to_be_visible()
            await page.locator("#text").focus()
            await page.wait_for_timeout(2_000)
            await page.evaluate(RECORD_FRAMES)
            await _type(page, seconds)
            quiet = await _take_recording(page)
            _, keys = await asyncio.gather(storm.rage(seconds), _type(page, seconds))
            stormy = await _take_recording(page)
            shown = await page.locator("#text").input_value()
            await storm.end()
    return {
        "updates": storm.updates,
        "quiet": quiet,
        "storm": stormy | {"keysTyped": keys, "keysShown": len(shown) - quiet["keys"]},
        "frameP95Ratio": round(stormy["frameP95Ms"] / quiet["frameP95Ms"], 2),
    }


async def memory(server: Server) -> dict[str, Any]:
    """The page's heap before any large details were opened, after one was opened and closed, and after all were.

    The first one loads the code that shows details; any growth after that is a leak.
    """
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        thread = await Thread.create(http)
        async with opened(server, thread) as page:
            text = "0123456789" * (DETAIL_BYTES // 10)
            written = await thread.send(f"/call write_file {json.dumps({'path': 'big', 'content': text})}")
            await thread.ended(written["runId"])
            sent = await thread.send(f'/times={DETAILS} /call read_file {{"path":"big"}}')
            await thread.ended(sent["runId"])
            await page.locator(".group").last.scroll_into_view_if_needed()
            head = page.locator(".group-head").last
            await expect(head).to_contain_text("Read big")
            await page.wait_for_timeout(2_500)
            if await head.get_attribute("aria-expanded") == "false":
                await head.click()
            session = await page.context.new_cdp_session(page)
            before = await _heap(session)
            await _open_and_close(page, session, 1)
            first = await _heap(session)
            peak = await _open_and_close(page, session, DETAILS)
            after = await _heap(session)
    return {
        "neverOpenedMiB": round(before / 2**20, 2),
        "firstClosedMiB": round(first / 2**20, 2),
        "mostWhileOneIsOpenMiB": round(peak / 2**20, 2),
        "allClosedMiB": round(after / 2**20, 2),
        "ratioToNeverOpened": round(after / before, 3),
        "ratioToFirstClosed": round(after / first, 3),
    }


async def _type(page: Page, seconds: float) -> int:
    end = time.monotonic() + seconds
    keys = 0
    while time.monotonic() < end:
        await page.keyboard.type("a")
        keys += 1
        await page.wait_for_timeout(1000 / KEYS_PER_SECOND)
    return keys


async def _take_recording(page: Page) -> dict[str, Any]:
    """The frames and tasks since the last call."""
    script = "() => { const seen = window.seen; window.seen = { frames: [], tasks: [] }; return seen; }"
    seen = await page.evaluate(script)
    keys = len(await page.locator("#text").input_value())
    frames = sorted(round(1000 * frame) for frame in seen["frames"])
    return {
        "frames": len(frames),
        "frameP50Ms": round((percentile(frames, 50) or 0), 2),
        "frameP95Ms": round((percentile(frames, 95) or 0), 2),
        "tasksOver50Ms": len(seen["tasks"]),
        "longestTaskMs": round(max(seen["tasks"], default=0)),
        "keys": keys,
    }


async def _heap(session: CDPSession) -> int:
    for _ in range(3):
        await session.send("HeapProfiler.collectGarbage")
    used: int = (await session.send("Runtime.getHeapUsage"))["usedSize"]
    return used


async def _open_and_close(page: Page, session: CDPSession, count: int) -> int:
    peak = 0
    for number in range(1, count + 1):
        card = page.locator(f"[aria-posinset='{number}'] .card")
        await card.scroll_into_view_if_needed()
        await card.locator(".card-head").click()
        await expect(card.get_by_role("group", name="Output")).to_contain_text("0123456789")
        if number % 20 == 0:
            peak = max(peak, await _heap(session))
        await card.locator(".card-head").click()
    return peak


async def bench(url: str, seconds: float, *, only: str | None) -> dict[str, Any]:
    """Run the measurements on a new database and new servers."""
    with tempfile.TemporaryDirectory() as folder:
        name = await postgres.make_template(url)
        database_url = postgres.named(url, name)
        env = {"DATABASE_URL": database_url, "KHALA_MODEL": "demo"}
        db = Database(database_url)
        try:
            with_executor = Server(Path(folder) / "with-executor.log", env, anew=True)
            with ended(with_executor):
                await asyncio.to_thread(with_executor.start)
                if only == "typing":
                    return {"typing": await typing(with_executor, seconds)}
                found = {"text": await text_flow(with_executor, seconds)}
                if only == "text":
                    return found
                found["typing"] = await typing(with_executor, seconds)
                found["memory"] = await memory(with_executor)
            idle = Server(Path(folder) / "idle.log", env, "--no-executor", anew=True)
            with ended(idle):
                await asyncio.to_thread(idle.start)
                return found | {"smoothness": await smoothness(db, idle, seconds)}
        finally:
            await db.close()


def main() -> None:
    """Measure, and print the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.page", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each measurement (%(default)s)")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--only-text", action="store_const", const="text", dest="only", help="measure how text appears")
    only.add_argument(
        "--only-typing", action="store_const", const="typing", dest="only", help="measure how typed letters appear"
    )
    args = parser.parse_args()
    with postgres.server() as url:
        print(json.dumps(asyncio.run(bench(url, args.seconds, only=args.only)), indent=2))


if __name__ == "__main__":
    main()
