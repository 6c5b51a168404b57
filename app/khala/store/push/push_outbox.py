"""The outbox of push notifications: records them in the transaction of the change, in one row for each browser.

Statements of the hot path ask with `WANTS_ANSWER`, so that `record_answers` is called only where a browser wants one.
"""

from collections.abc import Collection
from uuid import UUID

from khala.domain.push import GRACE, LONG_ANSWER
from khala.store.postgres.database import Driver
from khala.store.postgres.notifications import PUSH_CHANNEL

WANTS_ANSWER = f"""
    {{0}}.plan_id IS NULL AND {{0}}.created_at < clock_timestamp() - interval '{LONG_ANSWER.seconds} s' AND EXISTS (
        SELECT FROM push_subscriptions WHERE answers AND subject_id IN ({{0}}.user_id, {{0}}.asker_key_id))
"""
"""SQL: the run took long, and a browser of its requester wants to know when it ends."""
RECORD = f"""
    WITH recorded AS (
        INSERT INTO push_messages (seq, subscription_id, thread_id, run_id, kind, due_at, created_at)
        SELECT nextval('push_messages_seq'), subscription.id, run.thread_id, run.id, '{{kind}}',
               clock_timestamp() + interval '{GRACE.seconds} s', clock_timestamp()
        FROM unnest($1::uuid[], $2::uuid[]) AS changed (run_id, thread_id)
        JOIN runs AS run ON run.id = changed.run_id AND run.thread_id IS NOT DISTINCT FROM changed.thread_id
        JOIN threads AS thread ON thread.id = changed.thread_id
        JOIN push_subscriptions AS subscription ON subscription.subject_id IN ({{people}}) AND {{wanted}}
        RETURNING 1
    )
    SELECT pg_notify('{PUSH_CHANNEL}', '') FROM recorded LIMIT 1
"""
RECORD_WAITING = RECORD.format(kind="waiting", people="thread.owner_id, run.user_id, run.asker_key_id", wanted="true")
"""For the thread's owner and the run's requester. Whether they may decide is checked before the delivery."""
RECORD_ANSWERS = RECORD.format(kind="answer", people="run.user_id, run.asker_key_id", wanted="subscription.answers")


async def record_waiting(driver: Driver, runs: Collection[tuple[UUID, UUID]]) -> None:
    """Record that these runs, each with its thread, wait for a person. The caller holds the threads' locks."""
    await driver.execute(RECORD_WAITING, *map(list, zip(*runs, strict=True)))


async def record_answers(driver: Driver, runs: Collection[tuple[UUID, UUID]]) -> None:
    """Record that these runs, each with its thread, have ended. The caller holds the threads' locks."""
    await driver.execute(RECORD_ANSWERS, *map(list, zip(*runs, strict=True)))
