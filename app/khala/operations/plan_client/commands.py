"""The commands `khala plan …`: work of many steps on a running server, from a terminal."""

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click
import msgspec

from khala.console import KnownFailure, run
from khala.operations.plan_client.targets import PlanTarget, is_interactive, with_target

if TYPE_CHECKING:
    from khala.operations.plan_client.running import FoundPlan
    from khala.operations.plan_client.session import Output

EPILOG = (
    "Exit status: 0 completed; 1 an error, or a plan that stopped otherwise; 2 wrong usage; 3 the plan waits for"
    " somebody; 130 after Ctrl-C."
)
DOCUMENT = click.Path(dir_okay=False, path_type=Path)
GO_ON = "Go on: khala plan resume"
WATCH = "Watch it: khala plan status --watch"
CONTINUE = "Continue it in a new plan: khala plan export -o plan.md, then khala plan run plan.md"

STOPPED_EARLY = ("error", "no_tasks", "max_iterations")
"""Why a plan has stopped that did not complete all steps, and that nobody stopped."""


@click.group(epilog=EPILOG)
def plan() -> None:
    """Run plans, which are work of many steps, on a running server, and watch them.

    A server is started by `khala serve`.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # A title may have characters that the terminal has not.


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
plain_option = click.option("--plain", is_flag=True, help="Print a line for each event, also on a terminal.")
wait_option = click.option("--no-wait", is_flag=True, help="End with 3 if the plan pauses, instead of asking.")
detach_option = click.option("--detach", is_flag=True, help="Do not follow the plan: the server goes on alone.")


@plan.command("run", epilog=EPILOG)
@click.argument("file", type=DOCUMENT, required=False)
@click.option("--goal", metavar="TEXT", help="Let a model make the plan. A person reviews it and starts it.")
@click.option("--yes", is_flag=True, help="Start the plan that the model has made, without a question.")
@click.option("--title", help="The plan's title. By default the document's.")
@click.option("--mode", type=click.Choice(["all", "step", "autopilot"]), help="How it goes on after a step.")
@click.option("--agent", "agents", multiple=True, metavar="NAME", help="The agent, and then its fallbacks in order.")
@click.option("--parallel", type=click.IntRange(1, 8), help="Steps that run at once.")
@click.option("--strategy", type=click.Choice(["retry", "skip", "abort"]), help="After a failed step.")
@click.option("--max-iterations", type=click.IntRange(1, 10_000), help="Attempts of all steps together, at most.")
@click.option("--budget-usd", type=click.FloatRange(0, min_open=True), help="The most that the plan may spend.")
@click.option("--resume", is_flag=True, help="Resume an unfinished plan of this file or thread, without a question.")
@click.option("--new", is_flag=True, help="Begin a new plan, even if there is an unfinished one.")
@detach_option
@wait_option
@plain_option
@json_option
@with_target
def run_plan(
    *,
    target: PlanTarget,
    file: Path | None,
    goal: str | None,
    yes: bool,
    resume: bool,
    new: bool,
    detach: bool,
    no_wait: bool,
    plain: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Create a plan from FILE or a goal, start it, and follow it to its end.

    FILE is a Markdown checklist or a prd.json. Ctrl-C pauses the plan; twice within a second leaves the view at once.
    Without a terminal, each event is a line.
    """
    from khala.operations.plan_client import running, session

    if (file is None) == (goal is None):
        raise click.UsageError("Give either FILE or --goal.")
    if resume and new:
        raise click.UsageError("Give either --resume or --new.")
    output = session.output_kind(as_json=as_json, plain=plain)
    source = running.PlanSource(file=file, goal=goal, options=running.plan_options(options))
    started = None if new else running.unfinished_plan(target, source, resume=resume, interactive=is_interactive())
    is_new = started is None
    if started is None:
        started = running.create_plan(target, source)
        if goal is not None and not yes:
            _review(started, output, asks=not no_wait)
    connection, plan_id = started
    if detach:
        running.start(connection, plan_id)
        return
    follow_plan(started, output, goes_on=True, whole=is_new, asks=not no_wait)


def _review(made: "FoundPlan", output: "Output", *, asks: bool) -> None:
    """Show the plan that a model has made, and ask whether to start it. Exits if nobody says so."""
    from khala.operations.plan_client import session

    shown = run(session.read_plan(*made))
    if shown is None:
        raise SystemExit(130)
    session.show_status(*shown, output)
    if not (asks and output == "screen" and is_interactive() and click.confirm("Start it now?", err=True)):
        click.echo("Change it: khala plan edit. Start it: khala plan resume", err=True)
        raise SystemExit(session.EXIT_NEEDS_SOMEBODY)


def follow_plan(found: "FoundPlan", output: "Output", *, goes_on: bool, asks: bool, whole: bool = False) -> None:
    """Follow the plan; ask whether it goes on when it pauses. Exits with the status of its end."""
    from khala.operations.plan_client import session

    connection, plan_id = found
    while True:
        watched = run(session.follow(connection, plan_id, output, goes_on=goes_on, whole=whole))
        if watched is None:
            raise SystemExit(130)
        status = session.exit_status(watched)
        is_open = watched.plan.status != "stopped"
        may_ask = asks and output == "screen" and is_interactive()
        if status == session.EXIT_NEEDS_SOMEBODY and may_ask and click.confirm("Resume it now?", err=True):
            goes_on, whole = True, False
            continue
        if is_open and watched.received is not None and goes_on:
            runs = watched.plan.status in ("running", "stopping")
            click.echo(f"The plan is {watched.plan.status}. {WATCH if runs else GO_ON}", err=True)
        elif is_open and status == session.EXIT_NEEDS_SOMEBODY:
            click.echo(f"The plan waits for somebody. {GO_ON}", err=True)
        elif watched.plan.status == "stopped" and watched.plan.reason in STOPPED_EARLY:
            click.echo(CONTINUE, err=True)
        raise SystemExit(status)


@plan.command(epilog=EPILOG)
@click.option("--watch", is_flag=True, help="Follow it. Ctrl-C leaves the view, and the plan goes on.")
@click.option("--resume", is_flag=True, help="Resume it if it is paused, and follow it.")
@wait_option
@plain_option
@json_option
@with_target
def status(*, target: PlanTarget, watch: bool, resume: bool, no_wait: bool, plain: bool, as_json: bool) -> None:
    """Show a plan. On a terminal, offer to resume a paused one."""
    from khala.operations.plan_client import session
    from khala.operations.plan_client.watch import WatchResult

    output = session.output_kind(as_json=as_json, plain=plain)
    found = target.find()
    if watch or resume:
        follow_plan(found, output, goes_on=resume, asks=not no_wait)
    shown = run(session.read_plan(*found))
    if shown is None:
        raise SystemExit(130)
    session.show_status(*shown, output)
    code = session.exit_status(WatchResult(shown[0]))
    if code == session.EXIT_NEEDS_SOMEBODY and not no_wait and output == "screen" and is_interactive():
        if click.confirm("Resume it now?", err=True):
            follow_plan(found, output, goes_on=True, asks=True)
    elif code == session.EXIT_NEEDS_SOMEBODY:
        click.echo(GO_ON, err=True)
    raise SystemExit(code)


@plan.command(epilog=EPILOG)
@detach_option
@wait_option
@plain_option
@json_option
@with_target
def resume(*, target: PlanTarget, detach: bool, no_wait: bool, plain: bool, as_json: bool) -> None:
    """Let a paused plan go on, start one that was not started, and follow it."""
    from khala.operations.plan_client import running, session

    found = target.find()
    if detach:
        running.start(*found)
        return
    output = session.output_kind(as_json=as_json, plain=plain)
    follow_plan(found, output, goes_on=True, asks=not no_wait)


def _give(target: PlanTarget, name: str, body: dict[str, Any] | None = None) -> None:
    """Give the plan a command, and print the plan after it."""
    from khala.operations.plan_client import session

    found = target.find()
    changed = run(session.give_command(*found, name, body))
    if changed is not None:
        click.echo(session.plan_line(changed))


@plan.command(epilog=EPILOG)
@click.option("--force", is_flag=True, help="At once: cancel the steps under way, and open them again.")
@with_target
def pause(*, target: PlanTarget, force: bool) -> None:
    """Pause a plan after the steps under way, or at once with --force."""
    _give(target, "pause", {"force": force})


@plan.command(epilog=EPILOG)
@with_target
def stop(*, target: PlanTarget) -> None:
    """End a plan for good. The steps under way are canceled."""
    _give(target, "stop")


@plan.command(epilog=EPILOG)
@click.argument("step")
@with_target
def retry(*, target: PlanTarget, step: str) -> None:
    """Open a step again that has ended."""
    _change_step(target, step, "retry")


@plan.command(epilog=EPILOG)
@click.argument("step")
@with_target
def skip(*, target: PlanTarget, step: str) -> None:
    """Leave a step out. The steps that depend on it may run."""
    _change_step(target, step, "skip")


@plan.command(epilog=EPILOG)
@click.argument("step")
@with_target
def cancel(*, target: PlanTarget, step: str) -> None:
    """End a step without a result. The steps that depend on it do not run."""
    _change_step(target, step, "cancel")


def _change_step(target: PlanTarget, step: str, name: str) -> None:
    _give(target, f"steps/{quote(step, safe='')}/{name}")


@plan.command(epilog=EPILOG)
@with_target
def edit(*, target: PlanTarget) -> None:
    """Edit a plan as a Markdown checklist in $EDITOR, also while it runs.

    Steps that run or are completed can't be changed. After an error, the text is kept and can be edited again.
    """
    from khala.operations.plan_client import editing

    editing.edit_plan(*target.find(), interactive=is_interactive())


@plan.command(epilog=EPILOG)
@click.option("--format", "kind", type=click.Choice(["markdown", "prd"]), default="markdown", show_default=True)
@click.option("--output", "-o", type=DOCUMENT, help="A file. The other fields of an existing prd.json are kept.")
@with_target
def export(*, target: PlanTarget, kind: str, output: Path | None) -> None:
    """Print a plan as a Markdown checklist or as a prd.json."""
    from khala.domain.plans.documents.prd_json import read_prd, write_prd
    from khala.operations.plan_client import session

    exported = run(session.export_plan(*target.find(), kind))
    if exported is None:
        raise SystemExit(130)
    document = exported[1]
    if output is None:
        click.echo(document, nl=not document.endswith(b"\n"))
        return
    try:
        if kind == "prd" and output.exists():
            document = write_prd(read_prd(document), over=output.read_bytes())
        output.write_bytes(document)
    except OSError as error:
        raise KnownFailure(f"{output} can't be written: {error}") from error


@plan.command("list", epilog=EPILOG)
@json_option
@with_target
def list_plans(*, target: PlanTarget, as_json: bool) -> None:
    """List the plans of a thread, by default that of the last plan of this directory."""
    from khala.operations.plan_client import session

    thread_id = target.thread
    if thread_id is None:
        found = run(session.read_plan(*target.find()))
        if found is None:
            raise SystemExit(130)
        thread_id = found[0].thread_id
    for one in run(session.list_plans(target.connection(thread_id), thread_id)) or ():
        click.echo(msgspec.json.encode(one) if as_json else session.plan_line(one))
