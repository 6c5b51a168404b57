"""Opens a thread in a real browser, with a run whose parts the test writes itself."""

import contextlib
import json
from collections.abc import AsyncIterator
from uuid import UUID

from playwright.async_api import Page, async_playwright

from khala.store.postgres.database import Database
from tests.support import browser_program
from tests.support.client import Thread
from tests.support.observed_run import Served
from tests.support.update_storm import Storm
from tests.system.browser import PATIENCE_MS

RECORD_FRAMES = """() => {
    window.seen = { frames: [], tasks: [] };
    let last = performance.now();
    const frame = (now) => { window.seen.frames.push(now - last); last = now; requestAnimationFrame(frame); };
    requestAnimationFrame(frame);
    new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) window.seen.tasks.push(entry.duration);
    }).observe({ type: "longtask" });
}"""
"""Script that records the duration of each frame, and of each task of more than 50 ms."""


@contextlib.asynccontextmanager
async def opened(server: Served, thread: Thread, *arguments: str, script: str = "") -> AsyncIterator[Page]:
    """Open the thread in a browser with these additional arguments. `script` runs before the scripts of the page."""
    key = json.dumps({"id": thread.id, "title": None, "created": True, "key": thread.key, "usedAt": 1})
    async with async_playwright() as playwright:
        given = [*browser_program.ARGUMENTS, *arguments]
        browser = await playwright.chromium.launch(executable_path=browser_program.path(), args=given)
        context = await browser.new_context(viewport={"width": 1280, "height": 800}, service_workers="block")
        context.set_default_timeout(PATIENCE_MS)
        await context.add_init_script(f"localStorage.setItem('khala.chat.{thread.id}', {json.dumps(key)})")
        if script:
            await context.add_init_script(script)
        page = await context.new_page()
        await page.goto(f"{server.url}/t/{thread.id}")
        await page.wait_for_selector("body[data-connection=live]")
        yield page
        await browser.close()


async def storm_on(db: Database, thread: Thread, *, tasks: int) -> Storm:
    """Send a message, and let a storm execute its run."""
    sent = await thread.send("Do it all", options={"autopilot": True})
    return await Storm.of(db, UUID(sent["runId"]), tasks=tasks)
