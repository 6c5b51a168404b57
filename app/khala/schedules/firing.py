"""Fires one occurrence of a schedule, as the account that owns it. A repetition adds nothing."""

from uuid import UUID

import msgspec

from khala.domain.access import Caller
from khala.domain.chat import StoredRunOptions
from khala.domain.plans.commands import Start
from khala.domain.schedules import new_thread_id
from khala.store.accounts import accounts
from khala.store.plans import plans
from khala.store.postgres.database import Database
from khala.store.schedules.schedule_claims import FiredOccurrence
from khala.store.schedules.schedules import StoredSchedule
from khala.store.threads import sends, threads
from khala.store.threads.sends import SendLimits, SendRequest


async def fire(db: Database, schedule: StoredSchedule, message_id: UUID, limits: SendLimits) -> FiredOccurrence:
    """Send the schedule's message under this id, or start its plan. Raises the errors of both."""
    async with db.driver() as driver:
        caller = Caller(user_id=schedule.user_id, name=await accounts.name_of(driver, schedule.user_id))
    if schedule.plan_id is not None:
        plan = await plans.command(db, schedule.plan_id, caller, Start())
        return FiredOccurrence(thread_id=plan.thread_id)
    thread_id = schedule.thread_id or new_thread_id(message_id)
    if schedule.thread_id is None:
        await threads.create(db, thread_id, caller, title=schedule.name, welcome="", reserved=True)
    request = SendRequest(
        thread_id=thread_id,
        message_id=message_id,
        text=schedule.message or "",
        options=schedule.options or StoredRunOptions(),
    )
    sent, _ = await sends.send(db, request, caller, limits)
    return FiredOccurrence(thread_id=thread_id, run_id=sent.run_id)


def scheduled_options(options: StoredRunOptions) -> StoredRunOptions:
    """The options of scheduled runs: one that may not wait for another run waits nevertheless."""
    return msgspec.structs.replace(options, if_busy="queue") if options.if_busy == "reject" else options
