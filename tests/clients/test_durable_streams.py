"""Durable Streams: the protocol's own client and a part of its conformance tests, against a running server.

`make conformance ARGS=streams` runs all of its tests, which wait for a minute in all for streams to expire.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from khala.store.postgres.database import Database
from tests.clients.streams_conformance import LONG_POLL_SECONDS, run_suite
from tests.support import node_packages
from tests.support.callers import owned_thread, person
from tests.support.in_process import InProcessServer
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROGRAM = Path(__file__).parent / "durable-streams" / "client.mjs"
SMOKE = (
    "HTTP Protocol|SSE Mode|Idempotent Producer|Stream Closure|Fork - (Creation|Reading|Recursive|Deletion)|Preflight|"
    "Reserved subscription"
)
"""The groups of tests that wait for nothing."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(postgres_url: str, template: str) -> AsyncIterator[InProcessServer]:
    async with shared(
        postgres_url, template, KHALA_STREAMS="open", KHALA_ORIGINS="*", KHALA_COOLDOWN_MS="0",
        KHALA_STREAMS_LONG_POLL_SECONDS=str(LONG_POLL_SECONDS), KHALA_FETCH_ALLOW="127.0.0.0/8",
    ) as inside:  # fmt: skip
        yield inside


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def results(server: InProcessServer) -> dict[str, Any]:
    """What the client has seen, by scenario."""
    db = Database(server.database_url)
    owner = await person(db)
    thread_id = await owned_thread(db, owner)
    await db.close()
    return await node_packages.run(PROGRAM, KHALA_URL=server.url, KHALA_TOKEN=owner.token, KHALA_THREAD=str(thread_id))


async def test_batches_that_arrive_in_any_order_are_stored_once_and_in_order(results: dict[str, Any]) -> None:
    assert results["produced"] == {"numbers": list(range(200)), "closed": True}


async def test_a_live_reader_gets_text_that_was_appended_in_pieces(results: dict[str, Any]) -> None:
    assert results["followed"] == {"long-poll": "En taro Adún!", "sse": "En taro Adún!"}


async def test_a_thread_is_a_stream_of_its_frames_whose_offsets_are_revisions(results: dict[str, Any]) -> None:
    thread = results["thread"]
    (snapshot,) = thread["before"]
    assert (snapshot["type"], thread["offset"]) == ("snapshot", f"{0:016d}_{snapshot['revision']:016d}")
    frames = thread["frames"]
    assert [frame["from"] for frame in frames] == [snapshot["revision"], *(f["revision"] for f in frames[:-1])]
    parts = [part for frame in frames for part in frame.get("parts", ())]
    assert "".join(part["data"]["text"] for part in parts if part["kind"] == "text-delta") == "En taro Tassadar"


async def test_the_protocols_own_tests_pass(server: InProcessServer) -> None:
    report = await asyncio.to_thread(run_suite, server.url, only=SMOKE)
    assert (report.failed, report.passed >= 150) == ([], True), report
