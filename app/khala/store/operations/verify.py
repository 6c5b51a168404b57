"""Verification: a finished answer must equal the fold of its parts, and its receipts must be unchanged."""

from collections.abc import AsyncIterator
from uuid import UUID

import msgspec

from khala.domain.chat import ACTIVE
from khala.domain.fold import fold
from khala.domain.parts import Finish, Part
from khala.domain.receipts import chained_hash
from khala.store.postgres import rows
from khala.store.postgres.database import Database, Driver
from khala.store.runs import parts

PAGE_MESSAGES = 500
"""Messages that are checked in one transaction."""

ANSWERS = """
    SELECT messages.id, messages.thread_id, messages.status, messages.seq, messages.content, messages.finish,
           messages.run_id, runs.status AS run_status, runs.finish AS run_finish
    FROM messages JOIN threads ON threads.id = messages.thread_id AND threads.deleted_at IS NULL
    LEFT JOIN runs ON runs.id = messages.run_id
    WHERE messages.role = 'assistant' AND messages.run_id IS NOT NULL AND messages.id > $1
    ORDER BY messages.id LIMIT $2
"""

REVISIONS = """
    SELECT threads.id, threads.revision, greatest(
        (SELECT max(revision) FROM messages WHERE thread_id = threads.id),
        (SELECT max(revision) FROM message_parts WHERE thread_id = threads.id)) AS newest
    FROM threads WHERE threads.id > $1 ORDER BY threads.id LIMIT $2
"""

STRAYS = """
    SELECT run_id, thread_id FROM message_parts AS part
    WHERE seq = 0 AND NOT EXISTS (SELECT FROM runs WHERE runs.id = part.run_id)
      AND NOT EXISTS (SELECT FROM threads WHERE threads.id = part.thread_id AND threads.deleted_at IS NOT NULL)
    LIMIT 100
"""


class StoredDifference(msgspec.Struct, frozen=True):
    """An inconsistency: its place, and the problem."""

    place: str
    problem: str


class VerifyProgress(msgspec.Struct):
    """The number of checked answers and threads."""

    answers: int = 0
    threads: int = 0


async def find_differences(db: Database, checked: VerifyProgress) -> AsyncIterator[StoredDifference]:
    """All differences. Each page is read in a consistent state, so the verification may run beside a live server."""
    last = UUID(int=0)
    while True:
        async with db.snapshot() as driver:
            answers = await driver.fetch(ANSWERS, last, PAGE_MESSAGES)
            differences = [problem for row in answers for problem in await _answer(driver, row)]
        checked.answers += len(answers)
        for difference in differences:
            yield difference
        if len(answers) < PAGE_MESSAGES:
            break
        last = answers[-1]["id"]
    async for difference in _threads(db, checked):
        yield difference


async def _answer(driver: Driver, row: rows.Record) -> list[StoredDifference]:
    place = f"message {row['id']} of thread {row['thread_id']}"
    stored = await parts.of_run(driver, row["thread_id"], row["run_id"])
    ended = row["status"] != "streaming"
    problems = _seqs([part.seq for part in stored])
    problems += await _check_receipts(driver, row["run_id"], stored)
    problems += _states(row, ended=ended)
    if ended:
        problems += _ends([part.kind for part in stored])
        if rows.content(row["content"]) != fold((), [part.read() for part in stored]):
            problems.append("its content is not what its parts fold to")
        if row["seq"] != len(stored):
            problems.append(f"it claims {row['seq']} parts and has {len(stored)}")
    elif any(part.kind == "finish" for part in stored):
        problems.append("it has a finish and claims to be streaming")
    return [StoredDifference(place, problem) for problem in problems]


async def _check_receipts(driver: Driver, run_id: UUID, stored: list[Part]) -> list[str]:
    """Check the chain of hashes, whose last hash is in the finish."""
    last = b""
    for entry in await driver.fetch("SELECT * FROM receipts WHERE run_id = $1 ORDER BY seq", run_id):
        if entry["hash"] is None:
            return []  # from before there was a chain
        data = msgspec.json.decode(entry["data"])
        identity = {"run_id": run_id, "seq": entry["seq"], "kind": entry["type"], "tool_call_id": entry["tool_call_id"]}
        last = chained_hash(last, **identity, data=data, cost_usd=entry["cost_usd"])
        if last != entry["hash"]:
            return [f"its receipt {entry['seq']} is not what it was when it was written"]
    finish = stored[-1].read() if stored else None
    if isinstance(finish, Finish) and finish.witness != (last.hex() or None):
        return ["its receipts are not those that its finish has the hash of"]
    return []


def _seqs(seqs: list[int]) -> list[str]:
    return [] if seqs == list(range(len(seqs))) else ["its parts are not numbered 0, 1, 2, …"]


def _ends(kinds: list[str]) -> list[str]:
    if kinds.count("finish") == 1 and kinds[-1] == "finish":
        return []
    return ["it has ended without exactly one finish, as its last part"]


def _states(row: rows.Record, *, ended: bool) -> list[str]:
    if row["run_status"] is None:
        return ["its run is missing"]
    expected = row["run_status"] not in ACTIVE
    if expected != ended or (ended and row["run_status"] != row["status"]):
        return [f"it is {row['status']} and its run is {row['run_status']}"]
    return [] if row["finish"] == row["run_finish"] else ["its finish is not its run's"]


async def _threads(db: Database, checked: VerifyProgress) -> AsyncIterator[StoredDifference]:
    last = UUID(int=0)
    while True:
        async with db.snapshot() as driver:
            threads = await driver.fetch(REVISIONS, last, PAGE_MESSAGES)
        checked.threads += len(threads)
        for row in threads:
            if row["newest"] is not None and row["newest"] > row["revision"]:
                yield StoredDifference(
                    f"thread {row['id']}", f"it is at revision {row['revision']}, a row at {row['newest']}"
                )
        if len(threads) < PAGE_MESSAGES:
            break
        last = threads[-1]["id"]
    async with db.snapshot() as driver:
        for row in await driver.fetch(STRAYS):
            yield StoredDifference(f"run {row['run_id']} of thread {row['thread_id']}", "parts without a run")
