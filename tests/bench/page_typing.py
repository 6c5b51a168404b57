"""How soon the page shows a typed letter: without an answer, and while one with Markdown is written in a long chat."""

from typing import Any

import httpx
from playwright.async_api import Page

from tests.bench.counters import percentile
from tests.bench.page_text import BLOCKS, METRICS, answer_with, thread_time
from tests.support.browser_page import opened
from tests.support.client import Thread
from tests.support.server import Server

KEYS_PER_SECOND = 8
EARLIER_ANSWERS = 12
"""Answers of `EARLIER_CHARACTERS` that the chat has before."""
EARLIER_CHARACTERS = 4_000
RECORD_KEYS = """() => {
    window.keyLatencies = [];
    addEventListener("keydown", ({ timeStamp }) => {
        const painted = new MessageChannel();
        painted.port1.onmessage = () => window.keyLatencies.push(performance.now() - timeStamp);
        requestAnimationFrame(() => painted.port2.postMessage(null));
    }, { capture: true });
}"""
"""Records the milliseconds from each key press until the frame with its letter is painted: a task after its frame."""
TAKE = "() => { const taken = window.keyLatencies; window.keyLatencies = []; return taken; }"


async def typing(server: Server, seconds: float) -> dict[str, Any]:
    """Milliseconds from a key press until its letter is painted, and the main thread's time per key.

    While an answer is written, that time is mostly the answer's.
    """
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        thread = await Thread.create(http)
        text = (BLOCKS * (EARLIER_CHARACTERS // len(BLOCKS) + 1))[:EARLIER_CHARACTERS]
        for _ in range(EARLIER_ANSWERS):
            sent = await thread.send(f"/pace=0 /echo {text}")
            await thread.ended(sent["runId"])
        async with opened(server, thread) as page:
            await page.locator("#text").focus()
            await page.wait_for_timeout(2_000)
            await page.evaluate(RECORD_KEYS)
            quiet = await _typed(page, seconds)
            # Keys take longer than their interval on a busy machine.
            await answer_with(page, thread, BLOCKS, 3 * seconds)
            writing = await _typed(page, seconds)
            assert await page.locator(".message[data-state=writing]").count() == 1, "The answer ended too soon."
    return {"quiet": quiet, "whileAnAnswerIsWritten": writing}


async def _typed(page: Page, seconds: float) -> dict[str, float]:
    count = round(seconds * KEYS_PER_SECOND)
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = await thread_time(session)
    for _ in range(count):
        await page.keyboard.press("a")
        await page.wait_for_timeout(1000 / KEYS_PER_SECOND)
    after = await thread_time(session)
    await session.detach()
    latencies = sorted(round(1000 * latency) for latency in await page.evaluate(TAKE))
    assert len(latencies) == count, f"{count} keys were pressed, and {len(latencies)} painted."
    return {
        "keys": count,
        "p50Ms": round(percentile(latencies, 50) or 0, 1),
        "p95Ms": round(percentile(latencies, 95) or 0, 1),
        "maxMs": round(latencies[-1] / 1000, 1),
    } | {f"{name}PerKey": round(1000 * (after[key] - before[key]) / count, 2) for name, key in METRICS.items()}
