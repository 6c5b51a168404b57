"""Time for an observer that joins during an answer to catch up; the observers join one after the other."""

import asyncio
from collections.abc import Sequence

from tests.bench import fixtures
from tests.bench.driver_requests import EXTRA_SECONDS, read, wait, watch
from tests.bench.figures import Figures, Latency
from tests.bench.fixtures import BenchEnvironment
from tests.bench.khala import begin, expected, new_threads, targets, warm_up
from tests.bench.observers import JoinLate, JoinResult
from tests.bench.workload import Options, Workload

BACKGROUND = Workload(10, 1)
"""The workload that runs meanwhile."""
MIN_LATE_OBSERVERS = 100
"""For a meaningful median."""
JOIN_INTERVAL_SECONDS = 0.02


class Late(Figures, frozen=True, kw_only=True):
    """`connected` is the time until the socket is open; `caught_up` that from the subscribe frame to the snapshot."""

    observers: int
    connected: Latency
    caught_up: Latency
    problems: list[str]


async def late(options: Options, environment: BenchEnvironment) -> Late:
    """Let twice as many observers join as needed. Each must receive a prefix of what the model sent."""
    async with (
        fixtures.database(environment) as url,
        fixtures.khala(url, environment) as khala,
        fixtures.client(khala.web) as http,
        fixtures.drivers(2) as (driver, joiner),
    ):
        threads = await new_threads(http, BACKGROUND.runs)
        watched = targets(threads, khala.web.socket_url, BACKGROUND.observers)
        await watch([driver], watched)
        await warm_up(http)
        conversations = await begin(threads, options)
        await asyncio.sleep(options.seconds / 10)
        joining = JoinLate(
            targets=[watched[number % len(watched)] for number in range(2 * MIN_LATE_OBSERVERS)],
            message_ids={one.thread.id: one.message_id for one in conversations},
            pause=JOIN_INTERVAL_SECONDS,
        )
        joined = await joiner.ask(joining, JoinResult, within=options.seconds + EXTRA_SECONDS)
        await wait([driver], options.seconds + EXTRA_SECONDS)
        expected_texts = await expected(conversations, environment.model)
        observations = await read([driver], "khala", expected_texts)
    sent = {topic: one.text for topic, one in expected_texts.items()}
    return Late(
        observers=len(joined.texts),
        connected=Latency.of(joined.connected),
        caught_up=Latency.of(joined.caught_up),
        problems=observations.problems + _wrong(joined.texts, sent),
    )


def _wrong(texts: Sequence[tuple[str, str]], sent: dict[str, str]) -> list[str]:
    wrong = [f"{topic}: a late observer received text that was not sent" for topic, text in texts
             if not sent[topic].startswith(text)]  # fmt: skip
    if len(texts) < MIN_LATE_OBSERVERS:
        wrong.append(f"only {len(texts)} of {MIN_LATE_OBSERVERS} late observers joined during an answer")
    return wrong
