"""Starts plans for `khala plan run`, and finds those that were not finished."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import click
import msgspec

from khala.console import run
from khala.domain.plans.views import PlanEntry
from khala.operations.plan_client import session
from khala.operations.plan_client.api import ServerConnection
from khala.operations.plan_client.goals import plan_goal
from khala.operations.plan_client.last_plans import RememberedPlan
from khala.operations.plan_client.targets import PlanTarget
from khala.operations.plan_client.text import one_line

FoundPlan: TypeAlias = tuple[ServerConnection, UUID]
MAX_THREAD_TITLE_CHARACTERS = 100


class PlanSource(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a plan: a file or a goal, and the options of the plan."""

    file: Path | None = None
    goal: str | None = None
    options: Mapping[str, Any]

    @property
    def title(self) -> str:
        """The title of a new thread."""
        text = self.goal if self.file is None else self.file.name
        return one_line(text or "Plan", MAX_THREAD_TITLE_CHARACTERS)

    @property
    def name(self) -> str | None:
        """The file's whole path."""
        return None if self.file is None else str(self.file.resolve())


def plan_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a new plan, as the server takes them."""
    config = {
        "agents": list(given["agents"]) or None,
        "parallel": given["parallel"],
        "strategy": given["strategy"],
        "budget": given["budget_usd"] and {"usd": given["budget_usd"]},
    }
    options = {"title": given["title"], "mode": given["mode"], "maxIterations": given["max_iterations"]}
    return _without_none({**options, "config": _without_none(config) or None})


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def unfinished_plan(target: PlanTarget, source: PlanSource, *, resume: bool, interactive: bool) -> FoundPlan | None:
    """The unfinished plan of this file or thread, if the person wants to go on with it. None begins a new one.

    Raises `UsageError` if nobody can be asked.
    """
    found = _last_plan(target, source)
    if found is None:
        return None
    connection, last = found
    if last.status in ("running", "stopping"):
        click.echo(f"This plan goes on:\n  {session.plan_line(last)}", err=True)
    if resume or last.status in ("running", "stopping"):
        return connection, last.id
    click.echo(f"There is an unfinished plan:\n  {session.plan_line(last)}", err=True)
    if not interactive:
        raise click.UsageError("Go on with it by --resume, or begin a new plan by --new.")
    answer = click.prompt(
        "Resume it (r), begin a new plan (n), or quit (q)?", type=click.Choice(["r", "n", "q"]), default="r", err=True
    )
    if answer == "q":
        raise SystemExit(session.EXIT_NEEDS_SOMEBODY)
    return (connection, last.id) if answer == "r" else None


def _last_plan(target: PlanTarget, source: PlanSource) -> tuple[ServerConnection, PlanEntry] | None:
    """The newest plan of the thread that was named, or of the file, unless it has stopped."""
    last: PlanEntry | None = None
    connection = target.connection(target.thread)
    if target.thread is not None:
        last = run(session.newest_plan(connection, target.thread))
    elif source.name is not None:
        known = target.memory.find(server=target.server, source=source.name)
        if known is not None:
            connection = target.connection(known.thread_id)
            last = run(session.find_plan(connection, known.plan_id))
    return None if last is None or last.status == "stopped" else (connection, last)


def create_plan(target: PlanTarget, source: PlanSource) -> FoundPlan:
    """Create a plan, in a new thread if none was named, and remember it."""
    body = {} if source.file is None else session.document_body(source.file, source.options)
    connection, thread_id, made_key = target.connection(target.thread), target.thread, None
    if thread_id is None:
        created = run(session.create_thread(connection, source.title))
        if created is None:
            raise SystemExit(130)
        thread_id, made_key = created.thread.id, created.anon_key
        connection = msgspec.structs.replace(connection, anon_key=made_key or connection.anon_key)
    if source.goal is None:
        plan: PlanEntry | None = run(session.import_plan(connection, thread_id, body))
    else:
        click.echo("A model makes the plan.", err=True)
        plan = run(plan_goal(connection, thread_id, source.goal, source.options))
    if plan is None:
        raise SystemExit(130)
    known_key = made_key or target.memory.anon_key(target.server, thread_id)
    target.remember(
        RememberedPlan(
            server=target.server, plan_id=plan.id, thread_id=thread_id, source=source.name, anon_key=known_key
        )
    )
    return connection, plan.id


def start(connection: ServerConnection, plan_id: UUID) -> None:
    """Start or resume the plan, and print it."""
    plan = run(session.start(connection, plan_id))
    if plan is not None:
        click.echo(session.plan_line(plan))
