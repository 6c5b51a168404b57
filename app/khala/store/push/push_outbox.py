"""The outbox of push notifications: records them in the transaction of the change, in one row for each browser.

Statements of the hot path ask with `WANTS_ANSWER`, so that `record_answers` is called only where a browser wants one.
"""

from collections.abc import Collection, Mapping
from uuid import UUID

from khala.domain.push import GRACE, LONG_ANSWER, PushKind
from khala.store.postgres.database import Driver
from khala.store.postgres.notifications import PUSH_CHANNEL

WANTS_ANSWER = f"""
    {{0}}.plan_id IS NULL AND {{0}}.created_at < clock_timestamp() - interval '{LONG_ANSWER.seconds} s' AND EXISTS (
        SELECT FROM push_subscriptions WHERE answers AND subject_id IN ({{0}}.user_id, {{0}}.asker_key_id))
"""
"""SQL: the run took long, and a browser of its requester wants to know when it ends."""
RECORD = f"""
    WITH recorded AS (
        INSERT INTO push_messages (seq, subscription_id, thread_id, {{work}}_id, kind, due_at, created_at)
        SELECT nextval('push_messages_seq'), subscription.id, {{work}}.thread_id, {{work}}.id, '{{kind}}',
               clock_timestamp() + interval '{GRACE.seconds} s', clock_timestamp()
        FROM {{source}}
        JOIN threads AS thread ON thread.id = {{work}}.thread_id
        JOIN push_subscriptions AS subscription ON subscription.subject_id IN ({{people}}) AND {{wanted}}
        RETURNING 1
    )
    SELECT pg_notify('{PUSH_CHANNEL}', '') FROM recorded LIMIT 1
"""
RUNS = """
    unnest($1::uuid[], $2::uuid[]) AS changed (run_id, thread_id)
    JOIN runs AS run ON run.id = changed.run_id AND run.thread_id IS NOT DISTINCT FROM changed.thread_id
"""
REQUESTER = "run.user_id, run.asker_key_id"
RECORD_WAITING = RECORD.format(
    work="run", source=RUNS, kind="waiting", people=f"thread.owner_id, {REQUESTER}", wanted="true"
)
"""For the thread's owner and the run's requester. Whether they may decide is checked before the delivery."""
RECORD_ANSWERS = RECORD.format(work="run", source=RUNS, kind="answer", people=REQUESTER, wanted="subscription.answers")
PLAN = "(SELECT * FROM plans WHERE id = $1 AND thread_id IS NOT DISTINCT FROM $2) AS plan"
PERSON = "plan.user_id, plan.requester_key_id"
PEOPLE = f"thread.owner_id, {PERSON}, plan.creator_id"
TOOK_LONG = f"""
    (SELECT (data ->> 'at')::timestamptz FROM plan_events
     WHERE plan_id = $1 AND thread_id IS NOT DISTINCT FROM $2 AND data ->> 'type' IN ('started', 'resumed')
     ORDER BY seq DESC LIMIT 1) < clock_timestamp() - interval '{LONG_ANSWER.seconds} s'
"""
"""SQL: it is long ago that a person has let the plan go on."""
ENDED_BY_REQUESTER = """
    (SELECT data -> 'byRequester' FROM plan_events
     WHERE plan_id = $1 AND thread_id IS NOT DISTINCT FROM $2
       AND data ->> 'type' NOT IN ('stopping', 'stopped', 'attempt_charged')
     ORDER BY seq DESC LIMIT 1) IS NOT DISTINCT FROM 'true'::jsonb
"""
"""SQL: the plan has ended because the person for whom it acts has left out the last step."""
RECORD_PLAN: Mapping[PushKind, str] = {
    "waiting": RECORD.format(
        work="plan",
        source=PLAN,
        kind="waiting",
        people=PEOPLE,
        wanted="subscription.subject_id IS DISTINCT FROM plan.edited_by",
    ),
    "answer": RECORD.format(
        work="plan",
        source=PLAN,
        kind="answer",
        people=PEOPLE,
        wanted=f"""subscription.answers AND {TOOK_LONG}
            AND NOT ({ENDED_BY_REQUESTER} AND subscription.subject_id = coalesce({PERSON}))""",
    ),
}
"""For the thread's owner, the person for whom the plan acts and the one who created it, but not for the one whose edit
has paused or ended it. Whether they may resume or read it is checked before the delivery."""


async def record_waiting(driver: Driver, runs: Collection[tuple[UUID, UUID]]) -> None:
    """Record that these runs, each with its thread, wait for a person. The caller holds the threads' locks."""
    await driver.execute(RECORD_WAITING, *map(list, zip(*runs, strict=True)))


async def record_answers(driver: Driver, runs: Collection[tuple[UUID, UUID]]) -> None:
    """Record that these runs, each with its thread, have ended. The caller holds the threads' locks."""
    await driver.execute(RECORD_ANSWERS, *map(list, zip(*runs, strict=True)))


async def record_plan(driver: Driver, plan_id: UUID, thread_id: UUID, kind: PushKind) -> None:
    """Record that this plan has paused by itself, or has ended. The caller holds the thread's lock."""
    await driver.execute(RECORD_PLAN[kind], plan_id, thread_id)
