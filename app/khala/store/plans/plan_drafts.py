"""Drafts of plans: runs whose models make a plan of a goal.

The id of the message with the goal follows from that of the plan, so the same request again finds the same run.
"""

from uuid import UUID

from khala.domain.access import Action, Caller
from khala.domain.chat import Run
from khala.domain.errors import Conflict, NotFound
from khala.store.plans import plans
from khala.store.plans.plan_rows import READ
from khala.store.postgres.database import Driver
from khala.store.postgres.rows import Record
from khala.store.runs import runs
from khala.store.sharing import access
from khala.store.threads.reset_marks import IS_RUN

FIND = f"""
    SELECT id FROM runs WHERE user_message_id = $1 AND thread_id = $2 AND {IS_RUN} ORDER BY position, id LIMIT 1
"""
IS_TAKEN = "SELECT EXISTS (SELECT FROM plans WHERE id = $1)"


async def check_room(driver: Driver, thread_id: UUID, plan_id: UUID, caller: Caller) -> None:
    """Raise `Conflict` if a draft of this plan would be in vain, and the errors of `authorize`.

    A draft that exists is left alone.
    """
    await access.authorize(driver, thread_id, caller, Action.RUN_PLANS)
    if await driver.fetchval(FIND, plans.goal_id(plan_id), thread_id) is None:
        if await driver.fetchval(IS_TAKEN, plan_id):
            raise Conflict(plans.ID_TAKEN)
        await plans.check_room(driver, thread_id)


async def read(driver: Driver, thread_id: UUID, plan_id: UUID, caller: Caller) -> tuple[Run, Record | None]:
    """The run of the draft, and the row of its plan when it is made. Raises `NotFound`."""
    await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
    run_id = await driver.fetchval(FIND, plans.goal_id(plan_id), thread_id)
    if run_id is None:
        raise NotFound("There is no such draft of a plan.")
    return await runs.read_authorized(driver, run_id, caller), await driver.fetchrow(READ, plan_id, thread_id)
