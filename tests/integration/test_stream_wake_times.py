"""When the wakes of subscriptions to streams are due, as the database says."""

from khala.domain import ids
from khala.domain.streams.subscriptions import SubscriptionConfig
from khala.store.postgres.database import Database
from khala.store.streams import subscriptions, wakes
from khala.store.streams.stream_rows import StreamSpace


async def test_a_lease_that_lapses_between_two_queries_is_found_by_the_second(db: Database) -> None:
    config = SubscriptionConfig(kind="pull-wake", streams=("a",), wake_stream="wake/a")
    created, _ = await subscriptions.create(db, StreamSpace(None), ids.new().hex, config, "http://localhost/s")
    due = "UPDATE stream_subscriptions SET due_at = clock_timestamp() RETURNING id"
    async with db.driver() as driver:
        now = await wakes.read_time(driver)
        assert await driver.fetchval(due) == created.subscription.id
        assert await wakes.find_due(driver, now) == set()
        seconds = await wakes.seconds_to_next(driver, now)
        assert seconds is not None
        assert seconds <= 0
        assert await wakes.find_due(driver, await wakes.read_time(driver)) == {created.subscription.id}
        assert await wakes.seconds_to_next(driver, await wakes.read_time(driver)) is None
