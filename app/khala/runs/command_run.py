"""Executes a run of a command agent: a process answers in place of a model.

The run's parts are one tool call, `run_command`, whose result has the whole output, and the output as text. The call is
committed before the process starts. So an executor that takes the run over knows that there was a process, which can't
be continued and must not be repeated.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from khala.blobs.blob_service import BlobService
from khala.blobs.spool import Spool
from khala.domain import ids
from khala.domain.chat import Message, StepCheckout, StepRef
from khala.domain.isolation_policy import Interruption
from khala.domain.parts import ToolCall, ToolStatus
from khala.domain.plans import results
from khala.domain.plans.command_results import CommandFailure, judge_exit
from khala.domain.plans.completion import COMPLETION_MARKER
from khala.domain.plans.results import CONFLICT
from khala.domain.run_progress import RunProgress, ToolCallProgress
from khala.domain.tools import ToolActor
from khala.runs import command_prompt, tool_results
from khala.runs.command_output import CommandTranscript
from khala.runs.merge_turn import MergeTurn
from khala.runs.model_turn import RunOutcome, failed_outcome
from khala.runs.run_execution import RunExecution
from khala.runs.tool_call_recorder import ToolCallRecorder
from khala.runs.tool_results import InlineAllowance, StoredOutput
from khala.runs.usage_tally import UsageTally
from khala.store.blobs import objects
from khala.store.postgres.database import Database
from khala.store.runs.run_buffer import RunBuffer
from khala.tools.commands import Checkout, Command, CommandExit, CommandRunner, GitConflictError, GitError
from khala.tools.commands.runner import CommandOutput
from khala.tools.port import CallResult

RUN_COMMAND = "run_command"
INTERRUPTED = "The command was interrupted, because its executor ended. Please try again."
PROMPT_TOO_LONG = "The message is too long for this command."
NO_GIT = "The plan commits its work, and the operator does not allow that for the command {command}."
LOST_KILL_AFTER_SECONDS = 2.0
"""Time between SIGTERM and SIGKILL if the run is handed over or lost. Then there is not more time."""


class _CommandEnd(NamedTuple):
    """The outcome of a command, and the text that it wrote."""

    outcome: RunOutcome
    text: str


class CommandRun:
    """Executes one run with this command, for this actor."""

    def __init__(
        self,
        execution: RunExecution,
        buffer: RunBuffer,
        progress: RunProgress,
        tally: UsageTally,
        *,
        runner: CommandRunner,
        blob_service: BlobService,
        actor: ToolActor,
        db: Database,
    ) -> None:
        self._execution = execution
        self._db = db
        self._buffer = buffer
        self._progress = progress
        self._tally = tally
        self._runner = runner
        self._blob_service = blob_service
        self._actor = actor
        self._recorder = ToolCallRecorder(buffer, progress, {})

    async def run(self, command: Command, instructions: str, history: Sequence[Message]) -> RunOutcome:
        """Run the command to its end. Raises `LeaseLost`."""
        if self._progress.steps:
            return failed_outcome("interrupted", INTERRUPTED)
        prompt = command_prompt.build(instructions, history, max_bytes=command.max_prompt_bytes)
        if prompt is None:
            return failed_outcome("context_exceeded", PROMPT_TOO_LONG)
        options = self._execution.claimed.options
        if options.step is None or options.checkout is None:
            return (await self._run(command, prompt)).outcome
        if not command.git:
            return failed_outcome("unavailable", NO_GIT.format(command=command.name))
        try:
            return await self._run_step(command, prompt, options.step, options.checkout)
        except GitError as error:
            return failed_outcome(CONFLICT if isinstance(error, GitConflictError) else "failed", str(error))

    async def _run_step(self, command: Command, prompt: str, step: StepRef, rules: StepCheckout) -> RunOutcome:
        """Run the command for a step in its checkout, and commit its work when it completes the step.

        Raises `GitError`.
        """
        thread_id = self._execution.claimed.lease.thread_id
        async with self._db.driver() as driver:
            deployment = await objects.database_name(driver)
        async with Checkout.opened(command, thread_id, step, rules, deployment) as checkout:
            if checkout.summary is not None:
                self._buffer.append_text(f"{checkout.summary}\n\n{COMPLETION_MARKER}\n".lstrip())
                return RunOutcome("final", "stop")
            end = await self._run(msgspec.structs.replace(command, folder=str(checkout.folder)), prompt)
            summary = results.marked_summary(end.text, end.text)
            if end.outcome.status == "final" and summary is not None:
                await checkout.finish(summary, MergeTurn(self._db, thread_id, step).wait)
            return end.outcome

    async def _run(self, command: Command, prompt: str) -> _CommandEnd:
        call = await self._begin(command)
        began = time.monotonic()
        async with self._blob_service.spool() as spool:
            with self._recorder.progress_reporter(call) as report:
                transcript = CommandTranscript(self._buffer, spool, report)
                end = await self._execute(command, prompt, transcript)
            failure = _judge(end, transcript, command)
            output = await self._store(end, failure, spool)
        self._recorder.end(call, output, milliseconds=int((time.monotonic() - began) * 1000), source="command")
        return _CommandEnd(_outcome(failure), transcript.text)

    async def _begin(self, command: Command) -> ToolCallProgress:
        """Commit that the command is about to start."""
        call_id = f"call_{ids.new().hex}"
        args = {"command": command.name}
        part = ToolCall(tool_call_id=call_id, step=self._recorder.next_step, tool=RUN_COMMAND, args=args)
        (call,) = self._recorder.begin_step([part], self._tally).calls
        self._recorder.add(ToolStatus(tool_call_id=call_id, state="running"))
        await self._recorder.committed()
        return call

    async def _execute(self, command: Command, prompt: str, transcript: CommandTranscript) -> CommandExit:
        output = CommandOutput(stdout=transcript.receive_stdout, stderr=transcript.receive_stderr)
        thread_id = self._execution.claimed.lease.thread_id
        end = await self._runner.run(command, prompt, thread_id, output, kill_after=self._kill_after)
        await transcript.end()
        return end

    def _kill_after(self) -> float:
        stopped = self._execution.stopped
        is_canceled = not stopped.done() or stopped.result() is Interruption.CANCEL
        return float("inf") if is_canceled else LOST_KILL_AFTER_SECONDS

    async def _store(self, end: CommandExit, failure: CommandFailure | None, spool: Spool) -> StoredOutput:
        summary = failure.message if failure is not None else f"exited 0 in {end.seconds:.1f} s"
        code = None if failure is None else failure.code
        result = CallResult(ok=failure is None, output=None if spool.size else "", summary=summary, code=code)
        return await tool_results.store_output(result, spool, self._blob_service, self._actor, InlineAllowance())


def _judge(end: CommandExit, transcript: CommandTranscript, command: Command) -> CommandFailure | None:
    match end.reason:
        case "timeout":
            return CommandFailure(code="timeout", message=f"The command took more than {command.timeout:g} s.")
        case "unavailable":
            return CommandFailure(code="unavailable", message=end.problem)
        case "stopped":
            return CommandFailure(code="failed", message=end.problem)
        case "exited":
            assert end.code is not None
            now = datetime.now(UTC).astimezone()  # Commands write times of the day in the zone of their machine.
            return judge_exit(end.code, stdout=transcript.stdout_tail, stderr=transcript.stderr_tail, now=now)


def _outcome(failure: CommandFailure | None) -> RunOutcome:
    if failure is None:
        return RunOutcome("final", "stop")
    return failed_outcome(failure.code, failure.message, retry_after=failure.retry_after)
