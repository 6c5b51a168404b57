"""How long those who join late take to be caught up: one after the other, while answers are under way."""

import asyncio
from collections.abc import Sequence

from tests.bench import stage
from tests.bench.driving import SPARE, read, wait, watch
from tests.bench.figures import Figures, Latency
from tests.bench.khala import begin, expected, new_threads, targets, warm_up
from tests.bench.observers import Join, Joined
from tests.bench.stage import Stage
from tests.bench.workload import Options, Workload

BACKGROUND = Workload(10, 1)
"""What goes on meanwhile."""
ENOUGH = 100
"""Late observers, for a median that means something."""
PAUSE = 0.02
"""Seconds between two of them."""


class Late(Figures, frozen=True, kw_only=True):
    """`connected` until the socket is open; `caught_up` from the subscribe frame until all that was said has come."""

    observers: int
    connected: Latency
    caught_up: Latency
    problems: list[str]


async def late(options: Options, place: Stage) -> Late:
    """Let twice as many join as are needed. Each must have been told a beginning of what the model said."""
    async with (
        stage.database(place) as url,
        stage.khala(url, place) as khala,
        stage.client(khala.web) as http,
        stage.drivers(2) as (driver, joiner),
    ):
        threads = await new_threads(http, BACKGROUND.runs)
        watched = targets(threads, khala.web.socket_url, BACKGROUND.observers)
        await watch([driver], watched)
        await warm_up(http)
        conversations = await begin(threads, options)
        await asyncio.sleep(options.seconds / 10)
        joining = Join(
            targets=[watched[number % len(watched)] for number in range(2 * ENOUGH)],
            message_ids={one.thread.id: one.message_id for one in conversations},
            pause=PAUSE,
        )
        joined = await joiner.ask(joining, Joined, within=options.seconds + SPARE)
        await wait([driver], options.seconds + SPARE)
        wanted = await expected(conversations, place.model)
        seen = await read([driver], "khala", wanted)
    said = {topic: one.text for topic, one in wanted.items()}
    return Late(
        observers=len(joined.texts),
        connected=Latency.of(joined.connected),
        caught_up=Latency.of(joined.caught_up),
        problems=seen.problems + _wrong(joined.texts, said),
    )


def _wrong(texts: Sequence[tuple[str, str]], said: dict[str, str]) -> list[str]:
    wrong = [f"{topic}: a late observer was told what was not said" for topic, text in texts
             if not said[topic].startswith(text)]  # fmt: skip
    if len(texts) < ENOUGH:
        wrong.append(f"only {len(texts)} of {ENOUGH} late observers joined in mid-answer")
    return wrong
