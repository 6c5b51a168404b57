"""Creates, starts, follows and summarises plans of a server, for the commands of `khala plan`."""

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias
from uuid import UUID

import click
import msgspec
from rich.console import Console

from khala.domain.plans.documents.plan_document import MAX_DOCUMENT_BYTES
from khala.domain.plans.views import PlanDetail, PlanEntry, StepDetail
from khala.operations.plan_client.api import PlanApiClient, PlanThread, RequestRefused, ServerConnection, open_client
from khala.operations.plan_client.event_lines import reason_of
from khala.operations.plan_client.plan_screen import ScreenSize, draw, problems, progress
from khala.operations.plan_client.text import one_line
from khala.operations.plan_client.view_state import PlanViewState
from khala.operations.plan_client.views import EventJsonView, EventLineView, ScreenView, can_draw
from khala.operations.plan_client.watch import PlanWatcher, WatchResult

Output: TypeAlias = Literal["screen", "lines", "json"]
EXIT_FAILED = 1
EXIT_NEEDS_SOMEBODY = 3
PRD_SUFFIX = ".json"
MAX_STATUS_LINES = 2_000


def output_kind(*, as_json: bool, plain: bool) -> Output:
    """How a plan is shown: on a terminal as a screen, if nothing else is requested."""
    if as_json:
        return "json"
    return "screen" if can_draw() and not plain else "lines"


def exit_status(result: WatchResult) -> int:
    """0 completed, 1 stopped otherwise, 3 idle or paused, and 128 and the signal's number after a signal."""
    plan = result.plan
    if plan.status == "stopped":
        return 0 if plan.reason == "completed" and not plan.counts.failed else EXIT_FAILED
    if result.received is not None:
        return 128 + result.received
    return EXIT_NEEDS_SOMEBODY if plan.status in ("idle", "paused") else 0


async def create_thread(connection: ServerConnection, title: str) -> PlanThread:
    """Create a thread for a plan."""
    async with open_client(connection) as client:
        return await client.create_thread(title)


def document_body(path: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """The body that imports this file. Raises `UsageError`."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_DOCUMENT_BYTES + 1)
        if len(content) > MAX_DOCUMENT_BYTES:
            raise click.UsageError(f"{path} has more than {MAX_DOCUMENT_BYTES:,} bytes.")
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise click.UsageError(f"{path} can't be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{path} can't be read: it is not UTF-8 text.") from error
    kind = "prd" if path.suffix.lower() == PRD_SUFFIX else "markdown"
    return {"format": kind, "document": text, **options}


async def import_plan(connection: ServerConnection, thread_id: UUID, body: Mapping[str, Any]) -> PlanDetail:
    """Create a plan from a document."""
    async with open_client(connection) as client:
        return await client.import_plan(thread_id, body)


async def read_plan(connection: ServerConnection, plan_id: UUID) -> tuple[PlanDetail, list[StepDetail]]:
    """A plan, and its steps."""
    async with open_client(connection) as client:
        return await client.plan(plan_id), await client.steps(plan_id)


async def find_plan(connection: ServerConnection, plan_id: UUID) -> PlanDetail | None:
    """A plan, or None if it does not exist any more."""
    async with open_client(connection) as client:
        try:
            return await client.plan(plan_id)
        except RequestRefused as error:
            if error.status == 404:
                return None
            raise


async def newest_plan(connection: ServerConnection, thread_id: UUID) -> PlanEntry | None:
    """The newest plan of a thread."""
    plans = await list_plans(connection, thread_id)
    return plans[0] if plans else None


async def list_plans(connection: ServerConnection, thread_id: UUID) -> list[PlanEntry]:
    """The plans of a thread, the newest first."""
    async with open_client(connection) as client:
        return await client.plans(thread_id)


async def give_command(
    connection: ServerConnection, plan_id: UUID, name: str, body: Mapping[str, Any] | None = None
) -> PlanDetail:
    """Give a plan a command."""
    async with open_client(connection) as client:
        return await client.command(plan_id, name, body)


async def change_plan(connection: ServerConnection, plan_id: UUID, body: Mapping[str, Any]) -> PlanDetail:
    """Change the title or the goal of a plan."""
    async with open_client(connection) as client:
        return await client.change(plan_id, body)


async def export_plan(connection: ServerConnection, plan_id: UUID, kind: str) -> tuple[PlanDetail, bytes]:
    """The plan, and a document of it that is at least as new."""
    async with open_client(connection) as client:
        return await client.plan(plan_id), await client.export(plan_id, kind)


async def start(connection: ServerConnection, plan_id: UUID) -> PlanDetail:
    """Start or resume a plan."""
    async with open_client(connection) as client:
        await let_go_on(client, await client.plan(plan_id))
        return await client.plan(plan_id)


async def let_go_on(client: PlanApiClient, plan: PlanEntry) -> None:
    """Start an idle plan, and resume one that is paused or about to be. Any other is left as it is."""
    if plan.status == "idle":
        await client.command(plan.id, "start")
    elif plan.status in ("pausing", "paused"):
        await client.command(plan.id, "resume")


async def follow(
    connection: ServerConnection, plan_id: UUID, output: Output, *, goes_on: bool, whole: bool = False
) -> WatchResult:
    """Show a plan until it stops or pauses.

    `goes_on`: it is started or resumed before, and an interrupt pauses it. `whole`: events from before are shown, too.
    """
    async with open_client(connection) as client:
        before = await client.plan(plan_id)
        if goes_on:
            await let_go_on(client, before)
        state = PlanViewState(await client.plan(plan_id), await client.steps(plan_id))
        after = 0 if whole else before.event_seq
        if output == "screen":
            with ScreenView(Console(highlight=False, soft_wrap=True), pauses=goes_on).opened() as screen:
                watched = await PlanWatcher(client, state, screen, after_event=after, pauses=goes_on).run()
        else:
            lines = EventJsonView() if output == "json" else EventLineView()
            watched = await PlanWatcher(client, state, lines, after_event=after, pauses=goes_on).run()
    _summarise(state, output)
    return watched


def show_status(plan: PlanDetail, steps: list[StepDetail], output: Output) -> None:
    """Print a plan as it is now."""
    if output == "json":
        click.echo(msgspec.json.encode({"plan": plan, "steps": steps}))
    else:
        _print(PlanViewState(plan, steps))


def plan_line(plan: PlanEntry) -> str:
    """A plan on one line: id, status, progress, title, and why it is as it is."""
    done = ", ".join([progress(plan.counts), *(words for _, words in problems(plan.counts))])
    reason = f"  ({reason_of(plan)})" if plan.reason else ""
    return f"{plan.id}  {plan.status:<8}  {done}  {one_line(plan.title, 120)}{reason}"


def _summarise(state: PlanViewState, output: Output) -> None:
    """Print the end of what was followed."""
    state.outputs.clear()
    if output == "screen":
        _print(state)
    elif output == "json":
        click.echo(msgspec.json.encode({"type": "plan", "plan": state.plan}))
    else:
        click.echo(plan_line(state.plan))


def _print(state: PlanViewState) -> None:
    console = Console(highlight=False)
    width = console.size.width if sys.stdout.isatty() else 200
    size = ScreenSize(width, MAX_STATUS_LINES, ascii_only=console.options.ascii_only)
    console.print(draw(state, size, datetime.now(UTC)), soft_wrap=True)
