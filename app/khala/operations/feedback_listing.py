"""`khala feedback`: writes the feedback of all people as JSON lines, for evaluations."""

from datetime import datetime
from typing import TYPE_CHECKING

import click
import msgspec

from khala.console import KnownFailure

if TYPE_CHECKING:
    from khala.settings import Settings


async def print_feedback(settings: "Settings", *, since: datetime, with_texts: bool) -> None:
    """Print one line for each feedback that was given since then, the oldest first."""
    from khala.components import open_database
    from khala.store.postgres import migrations
    from khala.store.threads import feedback

    async with open_database(settings) as db:
        if await migrations.current(db) is None:
            raise KnownFailure("There is no schema yet: run `khala migrate` or `khala serve`.")
        async for given in feedback.evaluated(db, since=since, with_texts=with_texts):
            click.echo(msgspec.json.encode(given))
