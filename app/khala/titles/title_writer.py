"""Writes titles of threads: after their first answers, by a model, and within the requesters' budgets."""

import asyncio
import random
from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec
import structlog

from khala.domain import ids, titles
from khala.domain.access import Caller
from khala.domain.budgets import BudgetPolicy, budget_keys
from khala.domain.errors import BudgetExhausted, Unavailable
from khala.memory.metered_calls import MeteredCalls
from khala.models.model_names import ModelRef
from khala.models.port import LanguageModel, ModelFailed, Prompt, PromptTurn
from khala.signals import metrics
from khala.store.budgets.charges import Payer
from khala.store.postgres.database import Database
from khala.store.threads import title_jobs
from khala.store.threads.title_jobs import TitleJob, TitleSource

MAX_AT_ONCE = 4
"""Titles that one process writes at the same time."""
IDLE_SECONDS = 1.0
"""Time between two looks for work."""

TitleOutcome: TypeAlias = Literal["written", "unneeded", "budget", "invalid", "failed"]

log = structlog.get_logger()


class TitleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of titles. `model` is None for the one that wrote the answer; `fallback` replaces one that is gone."""

    model: ModelRef | None
    fallback: ModelRef
    budgets: BudgetPolicy


class TitleWriter:
    """Writes the titles that are due. Any number of processes may do so: each has leases of its own."""

    def __init__(self, db: Database, open_model: Callable[[ModelRef], LanguageModel], options: TitleOptions) -> None:
        self._db = db
        self._open = open_model
        self._options = options
        self._calls = MeteredCalls(db, options.budgets)
        self._worker_id = ids.new()
        self._places = asyncio.Semaphore(MAX_AT_ONCE)

    async def run(self) -> None:
        """Write titles for ever. A title whose process is lost is written again when its lease has lapsed."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._places.acquire()
                job = await self._claim()
                if job is None:
                    self._places.release()
                    await asyncio.sleep(IDLE_SECONDS * random.uniform(0.5, 1.5))
                else:
                    group.create_task(self._write_in_place(job))

    async def _claim(self) -> TitleJob | None:
        try:
            return await title_jobs.claim(self._db, self._worker_id)
        except Unavailable as error:
            log.warning("title_claim_failed", error=str(error.__cause__))
            return None

    async def _write_in_place(self, job: TitleJob) -> None:
        """Write the title, and free the place. Logs every error: one job must not end the others."""
        try:
            metrics.TITLES.labels(await self.write(job)).inc()
        except Unavailable as error:
            log.warning("title_dropped", thread_id=str(job.thread_id), error=str(error.__cause__))
        except Exception:
            # The lease lapses, and the title is written again, up to `MAX_ATTEMPTS` in all.
            log.exception("title_crashed", thread_id=str(job.thread_id))
        finally:
            self._places.release()

    async def write(self, job: TitleJob) -> TitleOutcome:
        """Write one title, and end its job."""
        async with self._db.driver() as driver:
            source = await title_jobs.read(driver, job)
        if source is None or job.attempts > title_jobs.MAX_ATTEMPTS:
            await title_jobs.drop(self._db, job)
            return "unneeded" if source is None else "failed"
        try:
            title = await self._ask(job, source)
        except BudgetExhausted:
            await title_jobs.drop(self._db, job)
            return "budget"
        except ModelFailed as failure:
            log.warning("title_failed", thread_id=str(job.thread_id), code=failure.code, attempt=job.attempts)
            await (title_jobs.drop if job.is_last_attempt else title_jobs.postpone)(self._db, job)
            return "failed"
        if title is None:
            await title_jobs.drop(self._db, job)
            return "invalid"
        return "written" if await title_jobs.finish(self._db, job, title) else "unneeded"

    async def _ask(self, job: TitleJob, source: TitleSource) -> str | None:
        """The title by the model; None if its answer has none. Raises `BudgetExhausted` and `ModelFailed`."""
        prompt = Prompt(
            system=titles.SYSTEM,
            turns=(PromptTurn(role="user", text=titles.question(source.asked, source.answered)),),
            max_output_tokens=titles.MAX_OUTPUT_TOKENS,
        )
        keys = budget_keys(Caller(user_id=job.user_id), job.thread_id, source.owner_id, source.anon_key_hash)
        payer = Payer(keys=keys, user_id=job.user_id, thread_id=job.thread_id, run_id=job.run_id)
        return titles.read_answer(await self._calls.answer(self._model(source), prompt, payer, "title"))

    def _model(self, source: TitleSource) -> LanguageModel:
        """The configured model, else the one that wrote the answer, else the default one."""
        if self._options.model is not None:
            return self._open(self._options.model)
        if source.provider is None or source.model is None:
            return self._open(self._options.fallback)
        try:
            return self._open(ModelRef(source.provider, source.model))
        except (ValueError, KeyError):
            return self._open(self._options.fallback)
