"""Requests titles of threads when their runs begin."""

from khala.models.model_names import DEMO_NAME, ModelRef
from khala.runs.executor_options import ExecutorOptions
from khala.store.postgres.database import Database
from khala.store.runs.run_queue import ClaimedRun
from khala.store.threads import title_jobs


async def request(db: Database, claimed: ClaimedRun, model: ModelRef, options: ExecutorOptions) -> None:
    """Request a title of the thread for after the run, if the operator wants titles.

    The demo model's titles would be examples, too, so it writes none unless the operator has named it. A step of a plan
    is no first question.
    """
    is_wanted = options.titles and (model.provider != DEMO_NAME or options.demo_titles)
    if not is_wanted or claimed.options.step is not None:
        return
    async with db.driver() as driver:
        await title_jobs.request(
            driver,
            thread_id=claimed.lease.thread_id,
            subject_id=claimed.requester.subject_id,
            user_id=claimed.requester.user_id,
            run_id=claimed.lease.run_id,
            message_id=claimed.user_message_id,
        )
