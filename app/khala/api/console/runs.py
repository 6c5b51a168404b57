"""The console's runs: a list, one run as a timeline, and commands."""

from typing import Annotated
from uuid import UUID

import structlog
from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import BodyKwarg, QueryParameter

from khala.api.console.access import ConsoleReason, given_reason
from khala.api.console.cursors import decode_id, encode_id
from khala.api.console.types import (
    BODY,
    DENIED,
    ConsoleController,
    Cursor,
    ExaminedPage,
    Limit,
    Search,
)
from khala.api.context import Context
from khala.api.http.path_parameters import RunId
from khala.api.http.problem_details import documented_errors
from khala.api.openapi.document import OptionalBody, example
from khala.api.validation import check_text
from khala.domain.access import Caller
from khala.store.console import run_commands, run_list, run_timeline
from khala.store.console.pages import ConsoleStruct
from khala.store.console.run_list import ConsoleRun, RunFilter, RunStateFilter
from khala.store.console.run_timeline import RunTimeline

log = structlog.get_logger()

ERRORS = documented_errors(*DENIED, "run_not_found", "conflict", *BODY)
Name = Annotated[str | None, QueryParameter(max_length=200, description="The exact name.")]
Reasoned = Annotated[ConsoleReason | None, BodyKwarg(examples=example("With a reason", reason="It hangs."))]


class ConsoleRunChange(ConsoleStruct, frozen=True, kw_only=True):
    """The run after a command, and whether the command changed it."""

    run: ConsoleRun
    changed: bool


class ConsoleRunController(ConsoleController):
    """Runs of all accounts."""

    path = "/console/runs"

    @get(
        "/",
        operation_id="listConsoleRuns",
        summary="List runs",
        response_description="Runs, the newest first.",
        responses=documented_errors(*DENIED),
    )
    async def page(
        self,
        context: NamedDependency[Context],
        admin: NamedDependency[Caller],
        in_state: Annotated[
            RunStateFilter | None, QueryParameter(name="state", description="Only runs in this state.")
        ] = None,
        agent: Name = None,
        model: Name = None,
        account: Annotated[UUID | None, QueryParameter(description="The requester.")] = None,
        thread: Annotated[UUID | None, QueryParameter(description="The thread.")] = None,
        q: Search = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> ExaminedPage[ConsoleRun]:
        """List the runs of all accounts, without texts."""
        texts = {"agent": agent, "model": model, "q": q}
        checked = {name: check_text(text, name) if text else None for name, text in texts.items()}
        wanted = RunFilter(state=in_state, account=account, thread=thread, **checked)
        async with context.db.snapshot() as driver:
            found = await run_list.read_page(driver, wanted, decode_id(cursor), limit)
        return ExaminedPage(items=found.items, next_cursor=encode_id(found.next), examined_until=found.examined_until)

    @get(
        "/{shown_run_id:uuid}",
        operation_id="readConsoleRun",
        summary="Read a run's timeline",
        response_description="The run and what happened.",
        responses=documented_errors(*DENIED, "run_not_found"),
    )
    async def read(
        self, context: NamedDependency[Context], admin: NamedDependency[Caller], shown_run_id: RunId
    ) -> RunTimeline:
        """Read what happened in a run, without texts: calls, approvals, take-overs, costs and its end."""
        async with context.db.snapshot() as driver:
            return await run_timeline.read_timeline(driver, await run_commands.find(driver, shown_run_id))

    @post(
        "/{shown_run_id:uuid}/cancel",
        operation_id="cancelConsoleRun",
        operation_class=OptionalBody,
        summary="Cancel a run",
        status_code=200,
        response_description="The run.",
        responses=ERRORS,
    )
    async def cancel(
        self,
        context: NamedDependency[Context],
        admin: NamedDependency[Caller],
        shown_run_id: RunId,
        data: Reasoned = None,
    ) -> ConsoleRunChange:
        """Cancel a run as its people would. An executor that holds it ends it."""
        return _changed(await run_commands.cancel(context.db, shown_run_id, admin, given_reason(data)), "cancel")

    @post(
        "/{shown_run_id:uuid}/end",
        operation_id="endConsoleRun",
        operation_class=OptionalBody,
        summary="End a run now",
        status_code=200,
        response_description="The run.",
        responses=ERRORS,
    )
    async def end(
        self,
        context: NamedDependency[Context],
        admin: NamedDependency[Caller],
        shown_run_id: RunId,
        data: Reasoned = None,
    ) -> ConsoleRunChange:
        """End a run now, whether or not an executor holds it. What the executor has not stored is lost."""
        return _changed(await run_commands.end(context.db, shown_run_id, admin, given_reason(data)), "end")

    @post(
        "/{shown_run_id:uuid}/requeue",
        operation_id="requeueConsoleRun",
        operation_class=OptionalBody,
        summary="Queue a running run again",
        status_code=200,
        response_description="The run.",
        responses=ERRORS,
    )
    async def requeue(
        self,
        context: NamedDependency[Context],
        admin: NamedDependency[Caller],
        shown_run_id: RunId,
        data: Reasoned = None,
    ) -> ConsoleRunChange:
        """Take the lease of a run away, so that another executor goes on after the stored text."""
        return _changed(await run_commands.requeue(context.db, shown_run_id, admin, given_reason(data)), "requeue")

    @post(
        "/{shown_run_id:uuid}/retry",
        operation_id="retryConsoleRun",
        operation_class=OptionalBody,
        summary="Retry a run",
        status_code=200,
        response_description="The new run.",
        responses=ERRORS | documented_errors("budget_exhausted", "rate_limited"),
    )
    async def retry(
        self,
        context: NamedDependency[Context],
        admin: NamedDependency[Caller],
        shown_run_id: RunId,
        data: Reasoned = None,
    ) -> ConsoleRunChange:
        """Queue another answer to the same message, for the requester of a run that has ended."""
        limits = context.limits.sends
        return _changed(await run_commands.retry(context.db, shown_run_id, admin, given_reason(data), limits), "retry")


def _changed(result: tuple[ConsoleRun, bool], command: str) -> ConsoleRunChange:
    run, changed = result
    log.info("console_run_command", command=command, run_id=str(run.id), changed=changed)
    return ConsoleRunChange(run=run, changed=changed)
