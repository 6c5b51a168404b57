"""A server that is killed between the commit of an event, its delivery, and the record of the delivery."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from aiohttp import web

from khala.store.postgres.database import Database
from tests.support.client import Thread
from tests.support.event_endpoint import EventEndpoint, deliveries_of, event_endpoint, new_endpoint
from tests.support.server import Server, ended

LAPSE = "UPDATE webhook_deliveries SET due_at = clock_timestamp() WHERE claim_id IS NOT NULL"
"""As if the lease of the killed process had lapsed."""


@pytest.fixture
async def receiver() -> AsyncIterator[EventEndpoint]:
    async with event_endpoint() as receiving:
        yield receiving


async def test_a_killed_server_loses_no_event_and_repeats_only_what_it_has_not_recorded(
    database_url: str, db: Database, receiver: EventEndpoint, tmp_path: Path
) -> None:
    env = {"DATABASE_URL": database_url, "KHALA_MODEL": "demo", "KHALA_FETCH_ALLOW": "127.0.0.0/8"}
    server = Server(tmp_path / "server.log", env, "--no-executor")
    with ended(server):
        await asyncio.to_thread(server.start)
        endpoint = await new_endpoint(db, receiver.url, events=["thread.created"])
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
            async with db.driver() as driver, driver.transaction():
                # No process can claim deliveries of the endpoint.
                await driver.execute("SELECT FROM webhook_endpoints WHERE id = $1 FOR NO KEY UPDATE", endpoint.id)
                committed = await Thread.create(http)
                await asyncio.to_thread(server.kill)
            assert receiver.received == []
            await asyncio.to_thread(server.start)
            (first,) = await receiver.wait_for(1)
            assert first.body["data"]["threadId"] == str(committed.id)

        never = asyncio.Event()

        async def hang(_: web.Request) -> web.StreamResponse:
            await never.wait()
            raise AssertionError

        receiver.answer = hang
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
            delivered = await Thread.create(http)
        unrecorded = (await receiver.wait_for(2))[1]
        await asyncio.to_thread(server.kill)
        receiver.answer = EventEndpoint().answer
        async with db.driver() as driver:
            await driver.execute(LAPSE)
        await asyncio.to_thread(server.start)
        repeated = (await receiver.wait_for(3))[2]
    assert repeated.id == unrecorded.id
    assert repeated.body == unrecorded.body
    assert repeated.body["data"]["threadId"] == str(delivered.id)
    assert first.id not in (unrecorded.id, repeated.id)
    assert len(await deliveries_of(db, endpoint)) == 2
    assert server.crashes() == []
