"""The operators' commands. What each needs is imported when it is called: no other command waits for that."""

import sys
from pathlib import Path

import click

from app.console import EPILOG, run, settings

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
GIB = 1 << 30


@click.command("import", epilog=EPILOG)
@click.argument("file", type=FILE)
@click.option("--email", help="The address to sign in by, if not the one in the archive. Goes with --password-stdin.")
@click.option("--password-stdin", is_flag=True, help="Give the account the password that standard input has a line of.")
@click.option("--trusted", is_flag=True, help="The archive is as a server wrote it: take over identities and members.")
@click.option("--max-gib", type=click.IntRange(1, 1 << 20), default=100, show_default=True, help="Of it, unpacked.")
def import_(*, file: Path, email: str | None, password_stdin: bool, trusted: bool, max_gib: int) -> None:
    """Import the account in FILE, which somebody exported, into this deployment.

    All of it or nothing; ids stay, and a second time nothing is added. It may run beside `serve`.
    """
    from app.operations.importing import import_account

    if email is not None and not password_stdin:
        raise click.UsageError("--email goes with --password-stdin.")
    password = sys.stdin.readline().rstrip("\r\n") if password_stdin else None
    run(import_account(settings(), file, email=email, password=password, trusted=trusted, max_bytes=max_gib * GIB))


COMMANDS: tuple[click.Command, ...] = (import_,)
