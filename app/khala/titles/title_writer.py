"""Writes titles of threads: after their first answers, by a model, and within the requesters' budgets."""

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec
import structlog

from khala.domain import ids, titles
from khala.domain.access import Caller
from khala.domain.budgets import BudgetPolicy, budget_keys
from khala.domain.errors import BudgetExhausted
from khala.memory.job_loop import run_jobs
from khala.memory.metered_calls import MeteredCalls
from khala.models.model_names import ModelRef
from khala.models.port import LanguageModel, ModelFailed, Prompt, PromptTurn
from khala.signals import metrics
from khala.store.budgets.charges import Payer
from khala.store.postgres.database import Database
from khala.store.threads import title_jobs
from khala.store.threads.title_jobs import TitleJob, TitleSource

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

    async def run(self) -> None:
        """Write titles for ever. A title whose process is lost is written again when its lease has lapsed."""
        await run_jobs("title", self._claim, self._write_and_count, idle_seconds=IDLE_SECONDS)

    async def _claim(self) -> TitleJob | None:
        return await title_jobs.claim(self._db, self._worker_id)

    async def _write_and_count(self, job: TitleJob) -> None:
        metrics.TITLES.labels(await self.write(job)).inc()

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
