"""Executes one claimed run from its stored parts on, until it ends, blocks or is handed over."""

import asyncio
from collections.abc import Sequence
from typing import assert_never

import structlog

from khala.domain import agents, run_progress
from khala.domain.agents import Agent
from khala.domain.chat import Message, StoredRunOptions
from khala.domain.errors import BudgetExhausted, Unavailable
from khala.domain.fold import fold, text_of
from khala.domain.isolation_policy import Interruption, IsolatedOutcome
from khala.domain.parts import Notice, PartData, RecalledMemory
from khala.domain.run_progress import RunProgress
from khala.domain.tools import ToolActor
from khala.memory.memory_service import MemoryService
from khala.models import model_names
from khala.models.model_names import ModelRef
from khala.models.token_counter import TokenCounter
from khala.runs import prompt, recall, run_agents, title_requests
from khala.runs.app_run import AppRun
from khala.runs.autopilot import Autopilot
from khala.runs.budget_meter import BudgetMeter
from khala.runs.command_run import CommandRun
from khala.runs.executor_options import ExecutorOptions
from khala.runs.model_turn import (
    ModelDependencies,
    RunOutcome,
    budget_outcome,
    failed_outcome,
    write_failure,
)
from khala.runs.prepared_run import PreparedRun
from khala.runs.prompt_files import PromptFiles
from khala.runs.prompt_limits import PromptLimits, max_prompt_tokens
from khala.runs.run_execution import RunExecution
from khala.runs.run_operations import RunOperations
from khala.runs.step_tool import UsageReports
from khala.runs.tool_executor import ToolDependencies, ToolExecutor
from khala.runs.tool_sampling import ToolSampling
from khala.runs.usage_tally import UsageTally
from khala.signals import metrics
from khala.store.budgets import ledger
from khala.store.memories import extraction_jobs
from khala.store.postgres.database import Database
from khala.store.runs import parts, run_queue
from khala.store.runs.group_commit import Writer
from khala.store.runs.run_buffer import LeaseLost, RunBuffer
from khala.store.runs.run_queue import ClaimedRun
from khala.store.threads import messages
from khala.store.tools import approvals
from khala.tools.commands import Command

log = structlog.get_logger()

INTERRUPTED = "The answer was interrupted too often. Please try again."
CANCEL_INTERVAL_SECONDS = 1.0
"""Time after which a task that ignores its cancellation is cancelled again."""


class RunExecutor:
    """Executes claimed runs, one for each call. The caller renews the leases."""

    def __init__(
        self,
        db: Database,
        writer: Writer,
        models: ModelDependencies,
        counter: TokenCounter,
        tool_dependencies: ToolDependencies,
        memories: MemoryService,
        options: ExecutorOptions,
    ) -> None:
        self._db = db
        self._writer = writer
        self._models = models
        self._counter = counter
        self._tool_dependencies = tool_dependencies
        self._memories = memories
        self._options = options

    async def execute(self, execution: RunExecution) -> None:
        """Execute the run until it ends, waits for approval, is out of time, or is stopped.

        Raises `LeaseLost`, `Unavailable`, and unexpected errors.
        """
        buffer, meter, progress = await self._resume(execution)
        answer = asyncio.create_task(self._answer(execution, buffer, meter, progress))
        clock = asyncio.create_task(meter.watch_time())
        try:
            await asyncio.wait((answer, clock, execution.stopped), return_when=asyncio.FIRST_COMPLETED)
            # Read before the answer is cancelled, because a cancelled task may raise any error.
            outcome = next((_outcome(task) for task in (answer, clock) if task.done()), None)
        finally:
            await _cancel(clock)
            await _cancel(answer)
        await self._end(execution, buffer, meter.tally, outcome)

    async def end_isolated(self, execution: RunExecution, outcome: IsolatedOutcome) -> None:
        """End or hand over a run whose child process ended without doing so."""
        if outcome is IsolatedOutcome.DROPPED:
            metrics.RUNS_ENDED.labels("dropped").inc()
            return
        buffer, meter, _ = await self._resume(execution)
        interrupted = failed_outcome("interrupted", INTERRUPTED) if outcome is IsolatedOutcome.INTERRUPTED else None
        await self._end(execution, buffer, meter.tally, interrupted)

    async def _resume(self, execution: RunExecution) -> tuple[RunBuffer, BudgetMeter, RunProgress]:
        """Load the run's stored parts, its budget and its decisions."""
        claimed = execution.claimed
        thread_id, run_id = claimed.lease.thread_id, claimed.lease.run_id
        stored: list[PartData | None] = []
        account = claimed.first_account
        if account is None:
            async with self._db.driver() as driver:
                stored = [part.read() for part in await parts.of_active_run(driver, thread_id, run_id)]
                account = await ledger.read_account(driver, thread_id, run_id)
                execution.decisions.receive(await approvals.of_run(driver, thread_id, run_id))
        buffer = self._writer.open(
            claimed.lease,
            next_seq=claimed.next_seq,
            next_receipt=claimed.next_receipt,
            last_receipt_hash=claimed.last_receipt_hash,
            content=fold((), stored),
            on_lost=lambda: execution.stop(Interruption.LOST),
        )
        meter = BudgetMeter(self._db, run_id, account, UsageTally(account.usage, account.usd))
        return buffer, meter, run_progress.read_progress(stored)

    async def _answer(
        self, execution: RunExecution, buffer: RunBuffer, meter: BudgetMeter, progress: RunProgress
    ) -> RunOutcome:
        claimed = execution.claimed
        if claimed.lost >= self._options.max_lost_executors:
            return failed_outcome("interrupted", INTERRUPTED)
        command = run_agents.command_of(self._tool_dependencies.commands.commands, claimed)
        if isinstance(command, RunOutcome):
            return command
        if command is not None:
            return await self._run_command(command, execution, buffer, meter, progress)
        app_agent = run_agents.app_agent_of(self._tool_dependencies.app, claimed)
        if isinstance(app_agent, RunOutcome):
            return app_agent
        if claimed.next_seq and (claimed.taken_over or not progress.waits_for_approval):
            buffer.append(Notice(code="resumed", message="The answer was interrupted here, and goes on."))
        agent = await run_agents.read_agent(self._db, claimed.options) if app_agent is None else app_agent.agent
        if isinstance(agent, RunOutcome):
            return agent
        options = claimed.options if agent is None else agents.apply(agent, claimed.options)
        prepared = await self._prepare(claimed, agent, options, buffer, progress)
        meter.tally.memories = len(prepared.memories)
        if claimed.options.route is not None and not claimed.next_seq:
            buffer.append(claimed.options.route)
        tool_executor = self._open_tools(execution, agent, prepared, buffer, meter, progress)
        operations = RunOperations(prepared, buffer, progress, meter, self._models, tool_executor)
        if app_agent is None:
            return await operations.outcome_of(Autopilot(operations).run())
        return await AppRun(
            operations,
            UsageReports(buffer, meter),
            progress=progress,
            meter=meter,
            tool_executor=tool_executor,
            blob_service=self._tool_dependencies.blob_service,
            actor=await self._actor(claimed),
            history=prepared.history,
        ).run(app_agent)

    def _open_tools(
        self,
        execution: RunExecution,
        agent: Agent | None,
        prepared: PreparedRun,
        buffer: RunBuffer,
        meter: BudgetMeter,
        progress: RunProgress,
    ) -> ToolExecutor:
        claimed, options = execution.claimed, prepared.options
        return ToolExecutor(
            buffer,
            progress,
            meter.tally,
            lambda: self._actor(claimed),
            self._tool_dependencies,
            execution.decisions,
            options.functions,
            run_agents.tools_of(agent, claimed.options),
            tool_choice=options.tool_choice,
            completes_step=claimed.options.step is not None,
            personal=options.personal,
            sampling=ToolSampling(buffer, meter, self._models, prepared.candidates, prepared.limits),
        )

    async def _prepare(
        self,
        claimed: ClaimedRun,
        agent: Agent | None,
        options: StoredRunOptions,
        buffer: RunBuffer,
        progress: RunProgress,
    ) -> PreparedRun:
        """Read what the run needs, and choose its models. The first part of a new run is what is recalled for it."""
        candidates, shortens = self._candidates(claimed, agent), options.context_overflow == "shorten"
        history = await self._history(claimed, candidates, shortens=shortens)
        memories = await self._recall(claimed, agent, candidates, buffer, progress, history)
        own = self._options.system if options.server_instructions else ""
        personal, folder = claimed.requester.all_instructions if options.personal else (None, None)
        system, history = prompt.system_prompt(own, history, personal, folder, options.instructions)
        return PreparedRun(
            options=options,
            candidates=candidates,
            limits=self._prompt_limits(claimed, shortens=shortens),
            files=PromptFiles(self._tool_dependencies.blob_service, claimed, personal=options.personal),
            system=system,
            personal=personal,
            folder=folder,
            memories=memories,
            history=history,
            tool_meanings=self._tool_dependencies.tool_meanings(claimed.requester.user_id or claimed.lease.thread_id),
            cooldown_seconds=self._options.cooldown_seconds,
        )

    async def _run_command(
        self,
        command: Command,
        execution: RunExecution,
        buffer: RunBuffer,
        meter: BudgetMeter,
        progress: RunProgress,
    ) -> RunOutcome:
        claimed, dependencies = execution.claimed, self._tool_dependencies
        run = CommandRun(
            execution,
            buffer,
            progress,
            meter.tally,
            runner=dependencies.commands,
            blob_service=dependencies.blob_service,
            actor=await self._actor(claimed),
            db=self._db,
        )
        options = agents.apply(command.agent, claimed.options)
        return await run.run(command, options.instructions, await self._history(claimed))

    async def _history(
        self, claimed: ClaimedRun, candidates: Sequence[ModelRef] = (), *, shortens: bool = True
    ) -> list[Message]:
        """The messages up to the one that is answered, as many as a prompt for one of the candidates may have.

        Raises `LeaseLost` if the thread was reset or deleted.
        """
        max_tokens = max_prompt_tokens(self._options.context_tokens, candidates, shortens=shortens)
        async with self._db.driver() as driver:
            history = await messages.read_path(
                driver,
                claimed.lease.thread_id,
                claimed.user_message_id,
                max_messages=prompt.MAX_MESSAGES,
                max_bytes=max_tokens * prompt.MAX_TOKEN_BYTES,
            )
        if not history:
            raise LeaseLost
        return history

    async def _recall(
        self,
        claimed: ClaimedRun,
        agent: Agent | None,
        candidates: Sequence[ModelRef],
        buffer: RunBuffer,
        progress: RunProgress,
        history: Sequence[Message],
    ) -> Sequence[RecalledMemory]:
        """The memories that fit the question. They are found once, and are the run's first part."""
        if progress.recall is not None or claimed.next_seq:
            return progress.recall.memories if progress.recall is not None else ()
        await self._request_extraction(claimed)
        await title_requests.request(self._db, claimed, candidates[0], self._options)
        requester = claimed.requester
        if not requester.recall:
            return ()
        question = text_of(history[-1].content or ())
        recalled = await recall.recall(
            self._db,
            self._memories,
            user_id=requester.user_id,
            thread_id=claimed.lease.thread_id,
            question=question,
            agent=None if agent is None else agent.name,
        )
        if recalled is None:
            return ()
        buffer.append(recalled)
        return recalled.memories

    async def _request_extraction(self, claimed: ClaimedRun) -> None:
        """Request the extraction of memories from what the requester said, if they want it."""
        lease, options, requester = claimed.lease, self._options, claimed.requester
        if (requester.extraction or options.extraction) == "off" or requester.subject_id is None:
            return
        if claimed.options.step is not None:
            return
        async with self._db.driver() as driver:
            await extraction_jobs.request(
                driver,
                thread_id=lease.thread_id,
                subject_id=requester.subject_id,
                user_id=requester.user_id,
                run_id=lease.run_id,
                message_id=claimed.user_message_id,
                delay_seconds=options.extraction_delay_seconds,
            )

    async def _actor(self, claimed: ClaimedRun) -> ToolActor:
        """The user for whom tools act now. Only the requester of a guest's run may have changed since its claim."""
        thread_id, run_id = claimed.lease.thread_id, claimed.lease.run_id
        user_id = claimed.requester.user_id
        if user_id is None:
            async with self._db.driver() as driver:
                user_id = await run_queue.read_requester(driver, claimed.lease)
        return ToolActor(owner_id=user_id or thread_id, user_id=user_id, thread_id=thread_id, run_id=run_id)

    def _candidates(self, claimed: ClaimedRun, agent: Agent | None) -> list[ModelRef]:
        """The models to call, in order: the requested or the default one, the agent's fallbacks, the operator's."""
        names = [claimed.options.model] if claimed.options.model is not None else agents.models_of(agent)
        preferred = claimed.requester.model if claimed.options.personal else None
        if preferred is not None and names[0] is None and self._options.allows_model(preferred):
            names = [preferred, *names]
        return list(dict.fromkeys([*map(self._model, names), *self._options.models]))

    def _prompt_limits(self, claimed: ClaimedRun, *, shortens: bool) -> PromptLimits:
        return PromptLimits(
            self._counter,
            context_tokens=self._options.context_tokens,
            requested=claimed.options.context_tokens,
            output_tokens=claimed.options.max_output_tokens,
            shortens=shortens,
        )

    def _model(self, name: str | None) -> ModelRef:
        return self._options.models[0] if name is None else model_names.parse(name)

    async def _end(
        self, execution: RunExecution, buffer: RunBuffer, tally: UsageTally, outcome: RunOutcome | None
    ) -> None:
        """End, block or hand over the run, by its outcome. Without an outcome, by the reason why it was stopped."""
        lease = execution.claimed.lease
        if outcome is None:
            interruption = execution.stopped.result()
            await self._stop(execution, buffer, tally, interruption)
        elif outcome.status == "blocked":
            await buffer.wait_written()
            await run_queue.release(self._db, lease, buffer.take_receipts(), awaited_approvals=outcome.awaits)
        else:
            if outcome.failure is not None:
                # Nothing is awaited between this call and `buffer.end`, so one commit has both.
                write_failure(buffer, outcome.failure)
            await buffer.end(outcome.status, tally.finish(outcome.reason))
        ended = outcome.status if outcome else execution.stopped.result().value
        metrics.RUNS_ENDED.labels(ended).inc()
        log.info("run_ended", outcome=ended, ms=tally.finish("").total_ms)

    async def _stop(
        self, execution: RunExecution, buffer: RunBuffer, tally: UsageTally, interruption: Interruption
    ) -> None:
        match interruption:
            case Interruption.CANCEL:
                await buffer.end("canceled", tally.finish("canceled"))
            case Interruption.HAND_OVER:
                await buffer.wait_written()
                await run_queue.release(self._db, execution.claimed.lease, buffer.take_receipts())
            case Interruption.LOST:
                pass  # Another executor holds the run.
            case _:
                assert_never(interruption)


async def _cancel(task: asyncio.Task[RunOutcome]) -> None:
    """Cancel the task until it ends: a library that is closing a connection may swallow one cancellation."""
    ended_itself = task.done()  # Then its error is the outcome.
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_INTERVAL_SECONDS)
    if not task.cancelled() and task.exception() is not None and not ended_itself:
        log.debug("run_cancel_raised", error=repr(task.exception()))


def _outcome(task: asyncio.Task[RunOutcome]) -> RunOutcome:
    """The task's outcome. An unexpected error is logged, and ends the run with a failure."""
    try:
        return task.result()
    except BudgetExhausted as error:
        return budget_outcome(error)
    except (LeaseLost, Unavailable):
        raise
    except Exception:
        log.exception("model_turn_crashed")
        return failed_outcome("internal", "Something went wrong here. Please try again.")
