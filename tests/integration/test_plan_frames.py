"""Plans in frames: what a socket and an event stream send of plans that change."""

from string import ascii_letters
from uuid import UUID

from khala.domain.access import Caller, key_hash
from khala.domain.plans.commands import Edit
from khala.store.plans import plans
from khala.store.postgres.database import Database
from tests.support.client import Thread
from tests.support.frames import events, socket
from tests.support.in_process import InProcessServer, khala
from tests.support.stored_plans import new_plan


async def test_null_stands_for_too_many_steps_or_events_on_every_transport(db: Database, database_url: str) -> None:
    async with khala(database_url, with_executor=False) as server:
        await check_nulls(db, server, await server.thread())


async def check_nulls(db: Database, server: InProcessServer, thread: Thread) -> None:
    caller = Caller(anon_key_hash=key_hash(thread.key))
    async with socket(server) as feed, events(thread) as stream:
        assert "plans" not in await feed.subscribe(thread)
        await stream.frame()
        plan_id = await new_plan(db, UUID(thread.id), caller, steps=ascii_letters)
        frame = await feed.next()
        assert (frame["planSteps"], len(frame["planEvents"])) == (None, 1)
        assert [entry["id"] for entry in frame["plans"]] == [str(plan_id)]
        assert "steps" not in frame["planEvents"][0]["data"]
        assert await stream.frame() == frame
        for number in range(101):
            await plans.command(db, plan_id, caller, Edit(title=f"Title {number}"))
    async with socket(server) as feed:
        resumed = await feed.subscribe(thread, after=frame["revision"])
        assert (resumed["type"], resumed["planSteps"], resumed["planEvents"]) == ("delta", None, None)
        assert resumed["plans"][0]["title"] == "Title 100"
    snapshot = await thread.snapshot()
    assert snapshot["plans"] == resumed["plans"]
