"""The commands `khala dev` and `khala new`."""

import shlex
import shutil
import sys
from pathlib import Path

import click

from khala.console import EPILOG, run


@click.command(epilog=EPILOG)
@click.option("--port", type=click.IntRange(0, 65_534), help="Port to listen on; by default PORT or 8000.")
@click.option("--seed", is_flag=True, help="Create example threads.")
@click.option("--verbose", is_flag=True, help="Log each request and run, too.")
def dev(*, port: int | None, seed: bool, verbose: bool) -> None:
    """Serve the project in this folder for its developer, and load its agents anew when a file changes.

    Its database is in the folder .khala. It listens on this machine only, signs the developer in as an administrator,
    and shows webhooks. It is not for production: use `khala serve` there.
    """
    from khala.dev import dev_server, dev_settings
    from khala.dev.dev_server import DevOptions

    folder = Path.cwd()
    settings = dev_settings.prepare(folder, port, _print, verbose=verbose)
    run(dev_server.serve(settings, DevOptions(folder=folder, seeds=seed), _print))
    dev_server.end_now()


@click.command(epilog=EPILOG)
@click.argument("name")
def new(*, name: str) -> None:
    """Write a new project into the folder NAME: an agent with a tool, a React page, and a test."""
    from khala.dev import new_project

    folder = new_project.create(name, Path.cwd())
    click.echo(f"The project is in {folder}. Begin with:")
    click.echo(f"  cd {name}")
    click.echo(f"  {_program()} dev")


def _program() -> str:
    """The words by which a person calls this program: its path if `khala` is not in `PATH`, as in a checkout."""
    return "khala" if shutil.which("khala") else shlex.quote(str(Path(sys.argv[0]).absolute()))


def _print(line: str) -> None:
    click.echo(line)
