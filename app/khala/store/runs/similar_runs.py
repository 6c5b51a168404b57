"""Ended runs of one requester, for estimates. Only their own: nobody learns of other people's runs."""

from decimal import Decimal
from uuid import UUID

import msgspec

from khala.domain.parts import Finish
from khala.domain.routing import DEFAULT_AGENT
from khala.domain.run_estimates import MAX_TEXT_CHARACTERS, EndedRun
from khala.store.postgres.database import Driver
from khala.store.postgres.rows import Record
from khala.store.threads.reset_marks import IS_MESSAGE, IS_RUN

MAX_THREADS = 20
"""Threads of a user that are searched, the last changed first."""
MAX_MESSAGES = 20
"""Messages of each thread that are searched, the newest first."""
MAX_RUNS = 40

OF_REQUESTER = f"""
    SELECT left(messages.content->0->>'text', {MAX_TEXT_CHARACTERS}) AS task, runs.steps, runs.finish
    FROM ({{threads}}) AS recent (thread_id) CROSS JOIN LATERAL (
        SELECT messages.id, messages.thread_id, messages.role, messages.content FROM messages
        WHERE messages.thread_id = recent.thread_id AND {IS_MESSAGE} ORDER BY position DESC LIMIT {MAX_MESSAGES}
    ) AS messages JOIN runs ON runs.user_message_id = messages.id AND runs.thread_id = messages.thread_id
    WHERE messages.role = 'user' AND runs.status = 'final' AND {{requester}} AND {IS_RUN}
      AND CASE WHEN runs.options->'route'->>'agent' = '{DEFAULT_AGENT}' THEN '{DEFAULT_AGENT}'
               ELSE coalesce(runs.options->>'agent', '{DEFAULT_AGENT}') END = $2
    ORDER BY runs.created_at DESC LIMIT {MAX_RUNS}
"""
OF_USER = OF_REQUESTER.format(
    threads=f"""
        SELECT thread_id FROM listings WHERE user_id = $1 AND NOT gone ORDER BY revision DESC LIMIT {MAX_THREADS}
    """,
    requester="runs.user_id = $1",
)
OF_GUEST = OF_REQUESTER.format(threads="SELECT $3::uuid", requester="runs.user_id IS NULL AND runs.asker_key_id = $1")


async def of_user(driver: Driver, user_id: UUID, agent: str) -> list[EndedRun]:
    """The newest answered runs of this agent that the user requested, in threads that are on their list."""
    return [_run(row) for row in await driver.fetch(OF_USER, user_id, agent)]


async def of_guest(driver: Driver, key_id: UUID, thread_id: UUID, agent: str) -> list[EndedRun]:
    """The newest answered runs of this agent in a thread that the holder of the key requested."""
    return [_run(row) for row in await driver.fetch(OF_GUEST, key_id, agent, thread_id)]


def _run(row: Record) -> EndedRun:
    finish = msgspec.json.decode(row["finish"], type=Finish)
    return EndedRun(
        task=row["task"] or "",
        steps=row["steps"],
        seconds=(finish.total_ms or 0) / 1000,
        usd=None if finish.cost_usd is None else Decimal(finish.cost_usd),
    )
