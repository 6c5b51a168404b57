"""The runs of steps: each attempt is a run in the plan's thread, as one of its branches.

Such a run has a task of its own, without the messages before it, and goes beside the other runs of the thread. It
neither moves the thread's active branch nor makes a send wait.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row

from khala.domain import budgets, ids
from khala.domain.access import Action, Caller, author_id_of_key, roles_allowing
from khala.domain.agents import lower_budget
from khala.domain.budgets import BudgetPolicy, ReservationRequest
from khala.domain.chat import ACTIVE, BUDGET_BOUNDS, RunBudget, RunStatus, StepRef, StoredRunOptions
from khala.domain.errors import Forbidden
from khala.domain.fold import Content, TextBlock
from khala.domain.parts import Finish, RunFailure, json_text
from khala.domain.plans import results
from khala.domain.plans.attempts import AttemptCanceled, Outcome, report, runs_under_way
from khala.domain.plans.events import StepStarted
from khala.domain.plans.plan import PlanBudget, Spent
from khala.store.accounts.account_marks import IS_PRESENT
from khala.store.budgets import account_plans, ledger
from khala.store.plans.plan_rows import StoredPlan
from khala.store.postgres import rows
from khala.store.postgres.database import Driver
from khala.store.postgres.notifications import RUNS_CHANNEL
from khala.store.runs import runs
from khala.store.threads.reset_marks import last_position

QUEUE = f"""
    WITH started AS MATERIALIZED (
        SELECT * FROM unnest($5::uuid[], $6::uuid[], $7::int[], $8::text[], $9::text[], $10::uuid[], $11::text[])
            AS started (task_id, answer_id, position, content, step, run_id, options)
    ), thread AS (
        SELECT id, revision, owner_id FROM threads WHERE id = $1
    ), tasks AS (
        INSERT INTO messages (id, thread_id, position, role, status, content, step, revision)
        SELECT task_id, $1, position, 'user', 'final', content::jsonb, step::jsonb, revision FROM started, thread
    ), answers AS (
        INSERT INTO messages (id, thread_id, parent_id, position, role, status, run_id, step, revision)
        SELECT answer_id, $1, task_id, position + 1, 'assistant', 'streaming', run_id, step::jsonb, revision
        FROM started, thread
    ), queued AS (
        INSERT INTO runs (id, thread_id, message_id, user_message_id, position, revision, fairness_key, status, options,
                          user_id, asker_key_id, plan_id, remote_owner_id)
        SELECT run_id, $1, answer_id, task_id, position, revision, coalesce(owner_id, thread.id), 'queued',
               options::jsonb, $3, $4, $2, (options::jsonb ->> 'remoteOwner')::uuid
        FROM started, thread
    )
    SELECT pg_notify('{RUNS_CHANNEL}', '')
"""
MAY_WRITE = f"""
    SELECT {last_position("$1")} AS position, EXISTS (SELECT FROM users WHERE id = $2 AND blocked_at IS NULL)
        AND {IS_PRESENT.format("$2")} AND (
        EXISTS (SELECT FROM threads WHERE id = $1 AND owner_id = $2)
        OR EXISTS (SELECT FROM memberships WHERE thread_id = $1 AND user_id = $2 AND role = ANY($3::text[]))
    ) AS allowed, ARRAY(
        SELECT key_hash FROM share_links
        WHERE thread_id = $1 AND role = ANY($3::text[]) AND coalesce(expires_at > clock_timestamp(), true)
    ) AS key_hashes
"""
LOCK = f"""
    SELECT *, {runs.HAS_EXECUTOR} AS held FROM runs
    WHERE id = ANY($2::uuid[]) AND thread_id = $1 AND status IN ('queued', 'running', 'blocked')
    ORDER BY id FOR NO KEY UPDATE
"""
POLL = """
    SELECT plans.event_seq, plans.epoch, (
        SELECT count(*) FROM runs
        WHERE fairness_key = (SELECT coalesce(owner_id, id) FROM threads WHERE threads.id = $2)
          AND status IN ('queued', 'running', 'blocked')
    ) AS own, clock_timestamp() AS now, run.* FROM plans LEFT JOIN LATERAL (
        SELECT runs.id, runs.status, answer.content, answer.finish, answer.failure
        FROM runs LEFT JOIN LATERAL (
            SELECT messages.content, messages.finish, (
                SELECT data FROM message_parts AS part
                WHERE part.run_id = runs.id AND part.thread_id IS NOT DISTINCT FROM $2 AND part.kind = 'error'
                  AND runs.status = 'error'
                ORDER BY part.run_id DESC, part.seq DESC LIMIT 1
            ) AS failure
            FROM messages WHERE messages.id = runs.message_id AND messages.thread_id IS NOT DISTINCT FROM $2
              AND runs.status NOT IN ('queued', 'running', 'blocked')
        ) AS answer ON true
        WHERE runs.id = ANY($3::uuid[]) AND runs.thread_id IS NOT DISTINCT FROM $2
    ) AS run ON true
    WHERE plans.id = $1 AND plans.thread_id IS NOT DISTINCT FROM $2
"""
APPROVAL_WAITS = """
    SELECT run_id, sum(upper(span) - lower(span)) AS waited FROM (
        SELECT run_id, unnest(range_agg(tstzrange(
            created_at, greatest(created_at, coalesce(decided_at, clock_timestamp()))
        ))) AS span
        FROM approvals WHERE run_id = ANY($1::uuid[]) AND thread_id IS NOT DISTINCT FROM $2 GROUP BY run_id
    ) AS spans GROUP BY run_id
"""
NOT_ALLOWED = "The person who started the plan may no longer write in this chat."


class StepTask(msgspec.Struct, frozen=True, kw_only=True):
    """The run to queue for an attempt: the text of its task, and its options without the budget."""

    text: str
    options: StoredRunOptions


class AttemptRun(msgspec.Struct, frozen=True, kw_only=True):
    """The run of an attempt. The other fields are set once it has ended."""

    status: RunStatus
    content: Content = ()
    finish: Finish | None = None
    failure: RunFailure | None = None

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return self.status not in ACTIVE

    @property
    def outcome(self) -> Outcome:
        """How the attempt ended, if its run has."""
        return results.outcome_of(self.status, self.content, self.finish, self.failure)

    @property
    def spent(self) -> Spent:
        """The cost of the run."""
        return results.spent_of(self.finish)


class PlanPoll(msgspec.Struct, frozen=True, kw_only=True):
    """The number of the plan's last event, the epoch of its lease, and those of its runs under way that exist.

    `now` is the time by the clock of the database: that of a process may be wrong, and events have the times by which
    others decide. `own` counts the active runs of the thread's owner, among which are the steps of all their plans.
    """

    now: datetime
    event_seq: int
    epoch: int
    own: int
    runs: dict[UUID, AttemptRun]


class StartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of the steps that start, by their runs, the thread's row, and the operator's limits."""

    tasks: Mapping[UUID, StepTask]
    thread: Row[Any]
    policy: BudgetPolicy


async def change(driver: Driver, stored: StoredPlan, revision: int, start: StartOptions | None = None) -> None:
    """Cancel the runs that the plan has given up, and queue those of the steps that start.

    The caller holds the thread's lock, and has stored the plan's events. Raises `BudgetExhausted`, and `Forbidden` if
    the person who started the plan may no longer write in the thread.
    """
    canceled = await driver.fetch(LOCK, stored.thread_id, list(stored.canceled_runs)) if stored.canceled_runs else []
    now = datetime.now(UTC)
    reservations = [] if start is None else await _queue(driver, stored, start, now)
    if canceled:
        # Locks all budget windows at once, before users' rows: see `sends`.
        requests = [request for _, requests in reservations for request in requests]
        await ledger.lock(driver, requests, run_ids=[run["id"] for run in canceled])
        await runs.cancel_runs(driver, canceled, revision=revision)
    for run_id, requests in reservations:
        await ledger.reserve(driver, run_id, requests, now)


async def _queue(
    driver: Driver, stored: StoredPlan, start: StartOptions, now: datetime
) -> list[tuple[UUID, list[ReservationRequest]]]:
    """Queue the run of each step that the unsaved events start. Returns the reservations of each run."""
    tasks, thread = start.tasks, start.thread
    started = [event for event in stored.unsaved if isinstance(event, StepStarted) and event.run_id in tasks]
    if not started:
        return []
    position = await check_person(driver, thread, stored.user_id, stored.requester_key_id)
    person = Caller(user_id=stored.user_id, network=stored.network)
    keys = budgets.budget_keys(person, stored.thread_id, thread.owner_id, thread.anon_key_hash)
    policy = await account_plans.policy_of(driver, start.policy, keys)
    queued: list[tuple[object, ...]] = []
    reservations = []
    for number, event in enumerate(started):
        assert event.run_id is not None
        task = tasks[event.run_id]
        step = StepRef(plan_id=stored.id, step_id=event.step_id, attempt=event.attempt)
        budget = lower_budget(run_budget(event.budget), task.options.budget)
        options = msgspec.structs.replace(task.options, step=step, budget=budget)
        content = json_text((TextBlock(text=task.text),))
        place = position + 1 + 2 * number
        queued.append((ids.new(), ids.new(), place, content, json_text(step), event.run_id, json_text(options)))
        reservations.append((event.run_id, budgets.reservation_requests(policy, keys, budget, now)))
    people = stored.user_id, stored.requester_key_id
    await driver.execute(QUEUE, stored.thread_id, stored.id, *people, *map(list, zip(*queued, strict=True)))
    return reservations


def run_budget(share: PlanBudget) -> RunBudget | None:
    """The budget of a run that has this share of its plan's budget, within the bounds of a run."""
    limits = {
        measure: min(amount, BUDGET_BOUNDS[measure][1])
        for measure in ("usd", "tokens", "seconds")
        if (amount := getattr(share, measure)) is not None
    }
    return msgspec.convert(limits, RunBudget, strict=False) if limits else None


async def poll(driver: Driver, stored: StoredPlan) -> PlanPoll | None:
    """The state that a driver has to know of its plan, by one query. None if the plan was deleted."""
    run_ids = list(runs_under_way(stored.plan))
    found = await driver.fetch(POLL, stored.id, stored.thread_id, run_ids)
    if not found:
        return None
    attempt_runs = {row["id"]: _attempt_run(row) for row in found if row["id"] is not None}
    first = found[0]
    return PlanPoll(
        now=first["now"], event_seq=first["event_seq"], epoch=first["epoch"], own=first["own"], runs=attempt_runs
    )


async def approval_waits(driver: Driver, thread_id: UUID, run_ids: Sequence[UUID]) -> dict[UUID, timedelta]:
    """The time for which each of these runs has waited for approvals. Runs that have asked for none are left out."""
    return {row["run_id"]: row["waited"] for row in await driver.fetch(APPROVAL_WAITS, run_ids, thread_id)}


async def report_ended(driver: Driver, stored: StoredPlan) -> None:
    """Report the attempts whose runs have ended, and of which the plan's driver has not heard yet.

    Otherwise a command could interrupt them, and finished steps would be repeated. The caller holds the thread's lock.
    """
    polled = await poll(driver, stored) if stored.plan.busy else None
    if polled is not None:
        report_polled(stored, polled)


def report_polled(stored: StoredPlan, polled: PlanPoll) -> None:
    """Report the attempts whose runs have ended by this poll, or were deleted by a reset of the thread."""
    for run_id, attempt in runs_under_way(stored.plan).items():
        run = polled.runs.get(run_id)
        if run is None:
            stored.apply(report(stored.plan, attempt, AttemptCanceled(), polled.now))
        elif run.ended:
            ended = msgspec.structs.replace(attempt, spent=run.spent)
            stored.apply(report(stored.plan, ended, run.outcome, polled.now))


def _attempt_run(row: rows.Record) -> AttemptRun:
    return AttemptRun(
        status=row["status"],
        content=rows.content(row["content"]) or (),
        finish=rows.decoded(row["finish"], Finish),
        failure=rows.decoded(row["failure"], RunFailure),
    )


async def check_person(driver: Driver, thread: Row[Any], user_id: UUID | None, key_id: UUID | None) -> int:
    """Raise `Forbidden` unless this person may run plans there. Returns the position of the thread's last message."""
    row = await driver.fetchrow(MAY_WRITE, thread.id, user_id, roles_allowing(Action.RUN_PLANS))
    assert row is not None
    key_hashes = [key_hash for key_hash in (*row["key_hashes"], thread.anon_key_hash) if key_hash is not None]
    if not row["allowed"] and key_id not in [author_id_of_key(key_hash) for key_hash in key_hashes]:
        raise Forbidden(NOT_ALLOWED)
    return int(row["position"])
