"""How an answer appears on the page: characters and scrolled pixels a frame, pauses, and time of the main thread."""

import asyncio
import itertools
from typing import Any

import httpx
from playwright.async_api import CDPSession, Page, expect

from tests.support.browser_page import opened
from tests.support.client import Thread
from tests.support.server import Server

TOKENS_PER_SECOND = 80
TOKENS_BEFORE = 40
"""Tokens before the measurement begins, so that loading the page's parts is not measured."""
WORDS = "It reads a block, decides what follows from it, and goes on with the next one until nothing is left to do. "
BLOCKS = """## Section

A paragraph with **strong words**, *emphasis*, `code` and [a link](https://example.com/page) that goes on for a while.

- an item of a list, which has some words
- another item with `code`

| name | value |
|---|--:|
| first | 1 |
| second | 2 |

```python
def follow(log):
    for row in log:
        print(row)
```

"""
RECORD_ARRIVALS = """
window.arrived = new Map();
window.Worker = class extends Worker {
    constructor(...all) {
        super(...all);
        this.addEventListener("message", ({ data }) => {
            for (const { id, blocks } of data.patch?.messages ?? []) {
                const texts = blocks.map((change) => change.append ?? change.block?.text ?? "");
                window.arrived.set(id, (window.arrived.get(id) ?? 0) + texts.join("").length);
            }
        });
    }
};
"""
"""Counts the characters of each message that the page's workers have posted."""
RECORD_TEXT = """() => {
    const area = document.getElementById("scroll");
    const frames = (window.textFrames = []);
    const shownLength = () => {
        const text = document.querySelector(".message:last-child .text");
        const walker = document.createTreeWalker(text, NodeFilter.SHOW_TEXT);
        let length = 0;
        while (walker.nextNode()) length += walker.currentNode.length;
        return length;
    };
    const { id } = document.querySelector(".message:last-child").dataset;
    const record = (now) => {
        if (!document.querySelector(".message:last-child[data-state=writing]")) return;
        frames.push([now, shownLength(), window.arrived.get(id), area.scrollTop]);
        requestAnimationFrame(record);
    };
    requestAnimationFrame(record);
}"""
"""Records the time, the characters that are shown and that have arrived, and the scroll position at each frame."""
METRICS = {
    "taskMs": "TaskDuration",
    "scriptMs": "ScriptDuration",
    "layoutMs": "LayoutDuration",
    "styleMs": "RecalcStyleDuration",
}


async def text_flow(server: Server, seconds: float) -> dict[str, Any]:
    """Measure a plain answer frame by frame, and the main thread's time per second in one with Markdown."""
    return {"frames": await _recorded(server, seconds), "mainThreadPerSecond": await _measured(server, seconds)}


async def _recorded(server: Server, seconds: float) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        thread = await Thread.create(http)
        async with opened(server, thread, script=RECORD_ARRIVALS) as page:
            await answer_with(page, thread, WORDS, seconds)
            await page.evaluate(RECORD_TEXT)
            await expect(page.locator(".message[data-state=writing]")).to_have_count(
                0, timeout=1000 * (2 * seconds + 30)
            )
            frames: list[list[float]] = await page.evaluate("window.textFrames")
    return summary(frames)


async def _measured(server: Server, seconds: float) -> dict[str, float]:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        thread = await Thread.create(http)
        async with opened(server, thread) as page:
            await answer_with(page, thread, BLOCKS, seconds)
            session = await page.context.new_cdp_session(page)
            await session.send("Performance.enable", {"timeDomain": "threadTicks"})
            before = await thread_time(session)
            await asyncio.sleep(seconds / 2)
            assert await page.locator(".message[data-state=writing]").count() == 1, "The answer ended too soon."
            after = await thread_time(session)
    duration = after["Timestamp"] - before["Timestamp"]
    return {name: round(1000 * (after[key] - before[key]) / duration, 1) for name, key in METRICS.items()}


async def answer_with(page: Page, thread: Thread, text: str, seconds: float) -> None:
    """Have the demo model echo the text for so many seconds, and wait until its beginning is shown."""
    characters = round((seconds * TOKENS_PER_SECOND + TOKENS_BEFORE) * 5)
    whole = (text * (characters // len(text) + 1))[:characters]
    await thread.send(f"/pace={TOKENS_PER_SECOND} /echo {whole}")
    shown = page.locator(".message:last-child[data-state=writing] .text")
    await expect(shown).to_contain_text(whole.lstrip("# ")[:5], timeout=30_000)
    await page.wait_for_timeout(1000 * TOKENS_BEFORE / TOKENS_PER_SECOND)


async def thread_time(session: CDPSession) -> dict[str, float]:
    """The browser's counters, such as `TaskDuration`, in seconds. "Performance.enable" chooses the clock."""
    found = await session.send("Performance.getMetrics")
    return {metric["name"]: metric["value"] for metric in found["metrics"]}


def summary(frames: list[list[float]]) -> dict[str, Any]:
    """The figures of recorded frames. A pause with text is one in which text had arrived that was not shown yet."""
    pairs = list(itertools.pairwise(frames))
    grown = [int(after[1] - before[1]) for before, after in pairs]
    scrolled = [round(after[3] - before[3]) for before, after in pairs]
    pauses, with_text = [0.0], [0.0]
    pause = waiting = frames[0][0]
    for before, after in pairs:
        if after[1] != before[1]:
            pauses.append(after[0] - pause)
            pause = after[0]
        if after[1] != before[1] or before[2] <= before[1] + 1:
            waiting = after[0]
        with_text.append(after[0] - waiting)
    moved = sorted(amount for amount in grown if amount)
    return {
        "frames": len(frames),
        "framesWithNewText": len(moved),
        "charactersPerFrameP50": moved[len(moved) // 2],
        "charactersPerFrameP95": moved[len(moved) * 95 // 100],
        "charactersPerFrameMax": max(moved, default=0),
        "scrolledPixelsPerFrameMax": max(scrolled, default=0),
        "longestPauseMs": round(max(pauses)),
        "longestPauseWithTextMs": round(max(with_text)),
        "mostCharactersBehind": round(max(frame[2] - frame[1] for frame in frames)),
    }
