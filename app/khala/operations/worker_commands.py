"""The operators' commands for remote workers. Each works on the database, without a running server."""

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from khala.console import EPILOG, KnownFailure, run
from khala.operations.home_notice import command_settings

if TYPE_CHECKING:
    from khala.settings import Settings

AGENT_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
MAX_DAYS = 3650


@click.group(epilog=EPILOG)
def workers() -> None:
    """Remote workers, which execute the runs of remote agents."""


@workers.command(epilog=EPILOG)
@click.argument("name")
@click.option("--agents", required=True, metavar="LIST", help="Names of remote agents, separated by commas.")
@click.option("--account", required=True, help="The id or e-mail address of the account that owns the agents.")
@click.option("--days", type=click.IntRange(1, MAX_DAYS), help="Days until it expires; by default never.")
def token(*, name: str, agents: str, account: str, days: int | None) -> None:
    """Create a token for the worker NAME and print it. It is stored as a hash, so it is shown only once."""
    named = [agent.strip() for agent in agents.split(",")]
    if bad := [agent for agent in named if not AGENT_NAME.fullmatch(agent)]:
        raise click.BadParameter(f"{bad[0]!r} is no name of an agent.", param_hint="--agents")
    if len(set(named)) < len(named):
        raise click.BadParameter("name each agent only once.", param_hint="--agents")
    if not 1 <= len(name.strip()) <= 200:
        raise click.BadParameter("use 1 to 200 characters.", param_hint="NAME")
    expires_at = None if days is None else datetime.now(UTC) + timedelta(days=days)
    click.echo(run(_create(command_settings(), account, name, named, expires_at)))


async def _create(settings: "Settings", account: str, name: str, agents: list[str], expires_at: datetime | None) -> str:
    from khala.components import open_database
    from khala.domain.errors import KhalaError, Unavailable
    from khala.store.accounts import worker_tokens
    from khala.store.postgres import migrations

    async with open_database(settings) as db:
        if await migrations.current(db) != migrations.head():
            raise KnownFailure("The schema is not up to date: run `khala migrate` or `khala serve`.")
        try:
            return await worker_tokens.create(db, account, name, agents, expires_at)
        except Unavailable:
            raise
        except KhalaError as error:
            raise KnownFailure(error.message) from error
