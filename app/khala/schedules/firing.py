"""Fires one occurrence of a schedule, as the account that owns it. A repetition adds nothing."""

from uuid import UUID

import msgspec

from khala.domain.access import Caller
from khala.domain.chat import SendResult, StoredRunOptions
from khala.domain.errors import Conflict
from khala.domain.plans.commands import Start
from khala.domain.schedules import new_thread_id
from khala.store.accounts import accounts
from khala.store.plans import plans
from khala.store.postgres.database import Database
from khala.store.schedules.schedule_claims import FiredOccurrence
from khala.store.schedules.schedules import StoredSchedule
from khala.store.threads import conversation_imports, sends
from khala.store.threads.conversation_imports import ConversationImport
from khala.store.threads.sends import SendLimits, SendRequest


async def fire(db: Database, schedule: StoredSchedule, message_id: UUID, limits: SendLimits) -> FiredOccurrence:
    """Send the schedule's message under this id, or start its plan. Raises the errors of both."""
    async with db.driver() as driver:
        caller = Caller(user_id=schedule.user_id, name=await accounts.name_of(driver, schedule.user_id))
    if schedule.plan_id is not None:
        plan = await plans.command(db, schedule.plan_id, caller, Start())
        return FiredOccurrence(thread_id=plan.thread_id)
    thread_id = schedule.thread_id or new_thread_id(message_id)
    request = SendRequest(
        thread_id=thread_id,
        message_id=message_id,
        text=schedule.message or "",
        options=schedule.options or StoredRunOptions(),
    )
    sent = None
    if schedule.thread_id is None and not await _exists(db, thread_id):
        sent = await _send_in_new_thread(db, schedule, request, caller, limits)
    if sent is None:
        sent, _ = await sends.send(db, request, caller, limits)
    return FiredOccurrence(thread_id=thread_id, run_id=sent.run_id)


async def _send_in_new_thread(
    db: Database, schedule: StoredSchedule, request: SendRequest, caller: Caller, limits: SendLimits
) -> SendResult | None:
    """Send and create the thread in one transaction: a send that is refused leaves no empty thread.

    None if another try of this occurrence has created the thread meanwhile.
    """
    new = ConversationImport(title=schedule.name, history=(), question=request)
    try:
        return await conversation_imports.start(db, new, caller, limits)
    except Conflict:
        if await _exists(db, request.thread_id):
            return None
        raise


async def _exists(db: Database, thread_id: UUID) -> bool:
    """Whether an earlier try of this occurrence has made its thread."""
    async with db.driver() as driver:
        return bool(await driver.fetchval("SELECT true FROM threads WHERE id = $1", thread_id))


def scheduled_options(options: StoredRunOptions) -> StoredRunOptions:
    """The options of scheduled runs: one that may not wait for another run waits nevertheless."""
    return msgspec.structs.replace(options, if_busy="queue") if options.if_busy == "reject" else options
