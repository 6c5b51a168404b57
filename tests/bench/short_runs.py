"""Fixed costs: sends a second against one budget of all accounts, statements of a send, and CPU of a short run.

Beside them, in turns, the same by a naive baseline, which stores the question and the answer in one transaction with
a NOTIFY, and the end of the answer in another. It has no budgets, leases, receipts or access checks.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from statistics import median

import asyncpg

from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.budgets import DAY_SECONDS, BudgetLimit, BudgetPolicy
from khala.domain.chat import RunOptions
from khala.store.accounts import accounts
from khala.store.postgres.database import Database, Driver
from khala.store.threads import sends, threads
from khala.store.threads.sends import SendLimits, SendRequest
from tests.bench import counters, fixtures
from tests.bench.costs import own_seconds
from tests.bench.figures import Figures
from tests.bench.fixtures import BenchEnvironment, Khala
from tests.bench.khala import new_threads
from tests.support.client import Thread

CONCURRENCY = 16
USERS = 64
SENDS = 400
"""Of one round, each to a thread of its own."""
ROUNDS = 3
RUNS = 200
SHORT_ANSWER = "/words=3 /pace=0"
POLL_INTERVAL_SECONDS = 0.25
LIMITS = SendLimits(
    per_owner=1_000_000,
    waiting=1_000_000,
    budgets=BudgetPolicy(
        limits=(BudgetLimit(scope="accounts", measure="usd", most=Decimal(1_000_000), window=DAY_SECONDS),)
    ),
)
"""One budget that all sends share, and that suffices for all of them."""

NAIVE_SCHEMA = """
    CREATE TABLE messages (
        id uuid PRIMARY KEY, thread_id uuid NOT NULL, role text NOT NULL, status text NOT NULL, content text
    )
"""
NAIVE_SEND = """
    WITH question AS (INSERT INTO messages VALUES ($1, $3, 'user', 'final', '?')),
         answer AS (INSERT INTO messages VALUES ($2, $3, 'assistant', 'streaming', NULL))
    SELECT pg_notify('threads', $3::text)
"""
NAIVE_END = """
    WITH answer AS (UPDATE messages SET status = 'final', content = $2 WHERE id = $1 RETURNING thread_id)
    SELECT pg_notify('threads', thread_id::text) FROM answer
"""


class ShortRuns(Figures, frozen=True, kw_only=True):
    """Fixed costs of Khala and of the naive baseline; medians of the rounds.

    `statements` of a send include BEGIN and COMMIT. `run_cpu_ms` is CPU time of web process, executor and Postgres for
    a send by HTTP, its claim, its text by the demo model and its end.
    """

    statements: float
    sends_per_second: float
    naive_sends_per_second: float
    run_cpu_ms: float
    naive_run_cpu_ms: float


async def short_runs(environment: BenchEnvironment) -> ShortRuns:
    """Measure sends and short runs, in turns with the naive baseline."""
    async with (
        fixtures.database(environment) as url,
        fixtures.database(environment, NAIVE_SCHEMA) as naive_url,
        fixtures.connected(url) as watch,
        asyncpg.create_pool(naive_url, min_size=CONCURRENCY, max_size=CONCURRENCY) as naive,
    ):
        rates, statements = await _measure_sends(url, naive)
        costs = await _measure_runs(url, environment, watch, naive)
    return ShortRuns(
        statements=statements,
        sends_per_second=median(rate for rate, _ in rates),
        naive_sends_per_second=median(rate for _, rate in rates),
        run_cpu_ms=median(cost for cost, _ in costs),
        naive_run_cpu_ms=median(cost for _, cost in costs),
    )


async def _measure_sends(url: str, naive: asyncpg.Pool) -> tuple[list[tuple[float, float]], float]:
    db = Database(url, pool_size=2 * CONCURRENCY)
    try:
        callers = [
            Caller(user_id=await accounts.register(db, f"{at}@x.org", "", None, Caller())) for at in range(USERS)
        ]
        rates = []
        for _ in range(ROUNDS):
            questions = [await _question(db, caller) for caller in itertools.islice(itertools.cycle(callers), SENDS)]
            ours = await _rate([partial(sends.send, db, question, caller, LIMITS) for question, caller in questions])
            theirs = await _rate([lambda: naive.execute(NAIVE_SEND, ids.new(), ids.new(), ids.new())] * SENDS)
            rates.append((ours, theirs))
        return rates, await _count_statements(db, callers[0])
    finally:
        await db.close()


async def _question(db: Database, caller: Caller) -> tuple[SendRequest, Caller]:
    thread, _ = await threads.create(db, ids.new(), caller, title=None, welcome="")
    return SendRequest(thread_id=thread.id, message_id=ids.new(), text="?", options=RunOptions()), caller


async def _rate(commands: Sequence[Callable[[], Awaitable[object]]]) -> float:
    """Commands a second, so many at once."""
    waiting = iter(commands)

    async def work() -> None:
        for command in waiting:
            await command()

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(work())
    return len(commands) / (time.monotonic() - began)


async def _count_statements(db: Database, caller: Caller) -> float:
    question, _ = await _question(db, caller)
    with _logged() as statements:
        one = Database(db.url)
        for _ in range(2):  # the first one prepares its statements
            question, _ = await _question(db, caller)
            statements.clear()
            await sends.send(one, question, caller, LIMITS)
        await one.close()
    return float(len(statements))


@contextlib.contextmanager
def _logged() -> Iterator[list[str]]:
    """Log the statements of all connections opened meanwhile."""
    statements: list[str] = []
    make = asyncpg.Connection.__init__

    def made(self: Driver, *arguments: object, **options: object) -> None:
        make(self, *arguments, **options)
        self.add_query_logger(lambda record: statements.append(record.query))

    asyncpg.Connection.__init__ = made
    try:
        yield statements
    finally:
        asyncpg.Connection.__init__ = make


async def _measure_runs(
    url: str, environment: BenchEnvironment, watch: Driver, naive: asyncpg.Pool
) -> list[tuple[float, float]]:
    await watch.execute("DELETE FROM runs")
    settings = {"KHALA_MODEL": "demo", "KHALA_ANON_TOTAL_USD_PER_DAY": "1000000"}
    costs = []
    async with fixtures.khala(url, environment, **settings) as khala, fixtures.client(khala.web) as http:
        await _complete_runs(await new_threads(http, RUNS), watch)  # work that a process does only once
        for _ in range(ROUNDS):
            made = await new_threads(http, RUNS)
            before = await _cpu(khala, watch)
            await _complete_runs(made, watch)
            ours = await _cpu(khala, watch) - before
            before = own_seconds() + await _cluster_cpu(watch)
            await _rate([lambda: _naive_run(naive)] * RUNS)
            theirs = own_seconds() + await _cluster_cpu(watch) - before
            costs.append((ours * 1000 / RUNS, theirs * 1000 / RUNS))
    return costs


async def _complete_runs(made: Sequence[Thread], watch: Driver) -> None:
    ended = "SELECT count(*) FROM runs WHERE status = 'final'"
    expected = await watch.fetchval(ended) + RUNS

    await _rate([partial(thread.send, SHORT_ANSWER) for thread in made])
    async with asyncio.timeout(60):
        while await watch.fetchval(ended) < expected:
            await asyncio.sleep(POLL_INTERVAL_SECONDS)


async def _naive_run(naive: asyncpg.Pool) -> None:
    answer = ids.new()
    await naive.execute(NAIVE_SEND, ids.new(), answer, ids.new())
    await naive.execute(NAIVE_END, answer, "word1 word2 word3")


async def _cpu(khala: Khala, watch: Driver) -> float:
    """CPU seconds of Khala's processes and of Postgres."""
    return counters.cpu_seconds([pid for pids in khala.pids.values() for pid in pids]) + await _cluster_cpu(watch)


async def _cluster_cpu(watch: Driver) -> float:
    cpu = (await counters.cluster(watch)).cpu
    if cpu is None:
        raise RuntimeError("Postgres has to run on this machine, under a user whose processes may be inspected.")
    return cpu
