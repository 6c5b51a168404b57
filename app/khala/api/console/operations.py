"""The console's overview, executors, slow tools and spend."""

from datetime import date, timedelta
from typing import Annotated
from uuid import UUID

from litestar import get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from khala.api.console.types import DENIED, ConsoleController, Limit
from khala.api.context import Context
from khala.api.http.problem_details import documented_errors
from khala.api.types import Items
from khala.api.validation import check_text
from khala.domain.access import Caller
from khala.domain.errors import InvalidInput
from khala.store.console import executors, overview, spend
from khala.store.console.executors import ConsoleExecutor
from khala.store.console.overview import ConsoleOverview
from khala.store.console.spend import SlowToolReport, SpendFilter, SpendGroup, SpendReport

MAX_TOOL_DAYS, DEFAULT_TOOL_DAYS = 92, 7
MAX_SPEND_DAYS, DEFAULT_SPEND_DAYS = 366, 30

First = Annotated[
    date | None, QueryParameter(name="from", description="The first day (UTC), as `2026-01-31`. The `to` is included.")
]
Last = Annotated[date | None, QueryParameter(name="to", description="The last day (UTC), by default today.")]


class ConsoleOperationsController(ConsoleController):
    """The state of the deployment."""

    path = "/console"

    @get(
        "/overview",
        operation_id="readConsoleOverview",
        summary="Read the overview",
        response_description="The state of the deployment.",
        responses=documented_errors(*DENIED),
    )
    async def overview(self, context: NamedDependency[Context], admin: NamedDependency[Caller]) -> ConsoleOverview:
        """Read the queue, executors, failures, approvals that wait, webhooks, and the spend of today."""
        lease_seconds = context.workers.options.lease_seconds
        async with context.db.snapshot() as driver:
            return await overview.read(driver, lease_seconds=lease_seconds)

    @get(
        "/executors",
        operation_id="listConsoleExecutors",
        summary="List executors",
        response_description="Executors that are alive, and holders of leases.",
        responses=documented_errors(*DENIED),
    )
    async def executors(
        self, context: NamedDependency[Context], admin: NamedDependency[Caller]
    ) -> Items[ConsoleExecutor]:
        """List executors with their places and leases."""
        async with context.db.snapshot() as driver:
            return Items(items=await executors.read_all(driver))

    @get(
        "/tools/slow",
        operation_id="listSlowTools",
        summary="List slow tools",
        response_description="Tools, the slowest first.",
        responses=documented_errors(*DENIED),
    )
    async def slow_tools(
        self,
        context: NamedDependency[Context],
        admin: NamedDependency[Caller],
        first: First = None,
        last: Last = None,
        limit: Limit = 50,
    ) -> SlowToolReport:
        """List the tools by the 95th percentile of their duration."""
        days = _days(first, last, default=DEFAULT_TOOL_DAYS, most=MAX_TOOL_DAYS)
        async with context.db.snapshot() as driver:
            return await spend.read_slow_tools(driver, *days, limit)

    @get(
        "/spend",
        operation_id="readSpend",
        summary="Read spend",
        response_description="Spend by user, model or day.",
        responses=documented_errors(*DENIED),
    )
    async def spend(
        self,
        context: NamedDependency[Context],
        admin: NamedDependency[Caller],
        by: Annotated[SpendGroup, QueryParameter(description="What to add up by.")] = "day",
        first: First = None,
        last: Last = None,
        account: Annotated[UUID | None, QueryParameter(description="Only of this account.")] = None,
        model: Annotated[
            str | None, QueryParameter(max_length=200, description="Only of this model, as `openai:gpt-5`.")
        ] = None,
        limit: Annotated[int, QueryParameter(ge=1, le=400, description="The maximum number of items.")] = 400,
    ) -> SpendReport:
        """Read the cost and tokens of model calls."""
        begin, end = _days(first, last, default=DEFAULT_SPEND_DAYS, most=MAX_SPEND_DAYS)
        named = check_text(model, "model") if model else None
        wanted = SpendFilter(by=by, first=begin, last=end, account=account, model=named)
        async with context.db.snapshot() as driver:
            return await spend.read_spend(driver, wanted, limit)


def _days(first: date | None, last: date | None, *, default: int, most: int) -> tuple[date, date]:
    """Return the first and last day. Raises `InvalidInput` for too many days, or none."""
    try:
        end = last or spend.today()
        begin = first or end - timedelta(days=default - 1)
    except OverflowError as error:
        raise InvalidInput("This day is too early.", path="to") from error
    if not 0 <= (end - begin).days < most:
        raise InvalidInput(f"Name at most {most} days, the first one as `from`.", path="from")
    return begin, end
