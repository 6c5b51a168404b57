"""Extracts memories from what people say: after their runs, by a model, and within their budgets."""

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import msgspec
import structlog

from khala.domain import extraction, ids
from khala.domain.access import Caller
from khala.domain.budgets import BudgetPolicy, budget_keys
from khala.domain.errors import BudgetExhausted, NotFound, PayloadTooLarge
from khala.domain.extraction import ExtractedMemory, SpokenMessage, UnusableAnswerError
from khala.domain.memories import Extraction, Memory, MemorySpace, NewMemory
from khala.memory.job_loop import run_jobs
from khala.memory.memory_service import MemoryService
from khala.memory.metered_calls import MeteredCalls
from khala.models import model_names
from khala.models.model_names import BadModelError, ModelRef
from khala.models.port import LanguageModel, ModelFailed, Prompt, PromptTurn
from khala.signals import metrics
from khala.store.budgets.charges import Payer
from khala.store.memories import extraction_jobs, extraction_sources, spaces
from khala.store.memories.extraction_jobs import ExtractionJob
from khala.store.memories.extraction_sources import ExtractionSource
from khala.store.postgres.database import Database

MAX_IDLE_SECONDS = 5.0
MIN_IDLE_SECONDS = 0.2
"""Bounds of the time between two looks for work, which is a quarter of the delay."""
MAX_ANSWERS = 2
"""Calls that answer: a second one if the first answer cannot be used."""
MAX_SEARCH_CHARACTERS = 2_000

ExtractionOutcome: TypeAlias = Literal["done", "off", "budget", "invalid", "failed"]

log = structlog.get_logger()


class ExtractionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the extraction, as the operator set them. `model` is None for that of the person's message.

    `delay_seconds`: the time from the begin of a run to its extraction.
    """

    default: Extraction
    model: ModelRef | None
    fallback: ModelRef
    budgets: BudgetPolicy
    delay_seconds: float


class MemoryExtractor:
    """Executes the extractions that are due. Any number of processes may do so: each has leases on its own."""

    def __init__(
        self,
        db: Database,
        service: MemoryService,
        open_model: Callable[[ModelRef], LanguageModel],
        options: ExtractionOptions,
    ) -> None:
        self._db = db
        self._service = service
        self._open = open_model
        self._options = options
        self._calls = MeteredCalls(db, options.budgets)
        self._worker_id = ids.new()

    async def run(self) -> None:
        """Extract for ever. An extraction that is cancelled is repeated when its lease has lapsed."""
        idle_seconds = min(max(MIN_IDLE_SECONDS, self._options.delay_seconds / 4), MAX_IDLE_SECONDS)
        await run_jobs("extraction", self._claim, self._extract_and_count, idle_seconds=idle_seconds)

    async def _claim(self) -> ExtractionJob | None:
        return await extraction_jobs.claim(self._db, self._worker_id)

    async def _extract_and_count(self, job: ExtractionJob) -> None:
        metrics.EXTRACTIONS.labels(await self.extract(job)).inc()

    async def extract(self, job: ExtractionJob) -> ExtractionOutcome:
        """Execute one extraction, and end its job."""
        async with self._db.driver() as driver:
            source = await extraction_sources.read(driver, job, default=self._options.default)
            said = await extraction_jobs.read_messages(driver, job)
            usable = await spaces.usable(driver, user_id=job.user_id, thread_id=job.thread_id)
        if source.mode == "off":
            await extraction_jobs.drop(self._db, job)
            return "off"
        spoken = [message for message in said if message.text]
        chosen = extraction.fitting(spoken)
        if not chosen or job.attempts > extraction_jobs.MAX_ATTEMPTS:
            position = said[-1].position if said else job.position
            more = len(said) > extraction.MAX_MESSAGES
            await extraction_jobs.finish(self._db, job, position=position, more=more)
            return "failed" if chosen else "done"
        try:
            outcome: ExtractionOutcome = await self._extract_from(job, source, usable[0], chosen)
        except BudgetExhausted:
            # Read by the extraction that the person's next run requests.
            await extraction_jobs.finish(self._db, job, position=job.position)
            return "budget"
        except ModelFailed as failure:
            log.warning("extraction_failed", thread_id=str(job.thread_id), code=failure.code, attempt=job.attempts)
            if not job.is_last_attempt:
                await extraction_jobs.postpone(self._db, job)
                return "failed"
            outcome = "failed"
        await extraction_jobs.finish(
            self._db, job, position=chosen[-1].position, more=chosen[-1].position < said[-1].position
        )
        return outcome

    async def _extract_from(
        self, job: ExtractionJob, source: ExtractionSource, space: MemorySpace, said: Sequence[SpokenMessage]
    ) -> ExtractionOutcome:
        words = "\n".join(message.text for message in said)[:MAX_SEARCH_CHARACTERS]
        near = await self._service.search(
            [space], words, limit=extraction.MAX_NEAR, payer_id=job.user_id or job.thread_id
        )
        found = await self._ask(job, source, said, near)
        if found is None:
            return "invalid"
        for extracted in found:
            try:
                stored_as = await self._service.add_extracted(job, space, extracted, default=self._options.default)
            except (NotFound, PayloadTooLarge) as error:
                log.info("extraction_not_stored", thread_id=str(job.thread_id), reason=error.message)
                break
            if stored_as != "known":
                metrics.EXTRACTED.labels(stored_as).inc()
        return "done"

    async def _ask(
        self, job: ExtractionJob, source: ExtractionSource, said: Sequence[SpokenMessage], near: Sequence[Memory]
    ) -> list[ExtractedMemory] | None:
        """The memories that the model finds; None if it gives no usable answer.

        Raises `BudgetExhausted` and `ModelFailed`.
        """
        prompt = Prompt(
            system=extraction.SYSTEM,
            turns=(PromptTurn(role="user", text=extraction.question(said, near)),),
            max_output_tokens=extraction.MAX_OUTPUT_TOKENS,
        )
        model = self._model(source)
        origin = NewMemory(text="", thread_id=job.thread_id, run_id=job.run_id)
        caller = Caller(user_id=job.user_id)
        keys = budget_keys(caller, job.thread_id, source.owner_id, source.anon_key_hash)
        payer = Payer(keys=keys, user_id=job.user_id, thread_id=job.thread_id, run_id=job.run_id)
        for _ in range(MAX_ANSWERS):
            answer = await self._calls.answer(model, prompt, payer, "extraction")
            try:
                return extraction.read_answer(answer, said, near, origin)
            except UnusableAnswerError as error:
                log.info("extraction_unusable", thread_id=str(job.thread_id), model=model.name, reason=str(error))
        return None

    def _model(self, source: ExtractionSource) -> LanguageModel:
        """The configured model, else that of the person's newest message, else the default one."""
        if self._options.model is not None:
            return self._open(self._options.model)
        try:
            return self._open(self._options.fallback if source.model is None else model_names.parse(source.model))
        except (BadModelError, ValueError):
            return self._open(self._options.fallback)
