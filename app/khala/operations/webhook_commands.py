"""`khala webhooks`: the operator's webhooks, which get the events of all threads. The commands use the database."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import UUID

import click

from khala.console import EPILOG, KnownFailure, run
from khala.domain.errors import KhalaError
from khala.domain.webhooks import DEPLOYMENT, EVENT_TYPES, MAX_ROTATION_SECONDS, shown_secret
from khala.operations.home_notice import command_settings

if TYPE_CHECKING:
    from khala.store.postgres.database import Database
    from khala.webhooks.event_sender import EventSender

EVENTS = click.Choice(EVENT_TYPES)


@click.group(epilog=EPILOG)
def webhooks() -> None:
    """Create, list, test and delete the operator's webhooks, which get the events of all threads.

    Accounts have webhooks of their own, for the threads that they own: `POST /api/webhooks`.
    """


@webhooks.command("create", epilog=EPILOG)
@click.argument("url")
@click.option("--event", "events", type=EVENTS, multiple=True, help="Only events of this type; may be repeated.")
@click.option("--include-content", is_flag=True, help="Send the text of messages, too.")
@click.option("--description", default="", help="A note for yourself.")
def create(*, url: str, events: tuple[str, ...], include_content: bool, description: str) -> None:
    """Create a webhook, and print its id and its secret, which is shown only once."""
    run(_create(url, events, include_content=include_content, description=description))


@webhooks.command("list", epilog=EPILOG)
def list_() -> None:
    """List the operator's webhooks."""
    run(_list())


@webhooks.command("test", epilog=EPILOG)
@click.argument("webhook", type=click.UUID)
def test(*, webhook: UUID) -> None:
    """Send an event of type webhook.test; exit with 1 if the endpoint does not take it."""
    run(_test(webhook))


@webhooks.command("enable", epilog=EPILOG)
@click.argument("webhook", type=click.UUID)
def enable(*, webhook: UUID) -> None:
    """Enable a webhook that Khala has disabled. It gets the events that have waited for it."""
    run(_enable(webhook))


@webhooks.command("rotate", epilog=EPILOG)
@click.argument("webhook", type=click.UUID)
@click.option(
    "--overlap",
    type=click.IntRange(0, MAX_ROTATION_SECONDS),
    default=86_400,
    show_default=True,
    metavar="SECONDS",
    help="The time for which the previous secret signs, too.",
)
def rotate(*, webhook: UUID, overlap: int) -> None:
    """Make a new secret for a webhook, and print it."""
    run(_rotate(webhook, overlap))


@webhooks.command("delete", epilog=EPILOG)
@click.argument("webhook", type=click.UUID)
def delete(*, webhook: UUID) -> None:
    """Delete a webhook."""
    run(_delete(webhook))


async def _create(url: str, events: Sequence[str], *, include_content: bool, description: str) -> None:
    from khala.domain.access import Caller
    from khala.store.webhooks import endpoints
    from khala.store.webhooks.endpoints import MAX_DEPLOYMENT_ENDPOINTS, EndpointConfig

    async with _opened() as (db, sender):
        await sender.check(url)
        config = EndpointConfig(
            url=url, description=description, events=tuple(dict.fromkeys(events)), include_content=include_content
        )
        stored = await endpoints.create(db, DEPLOYMENT, config, caller=Caller(), limit=MAX_DEPLOYMENT_ENDPOINTS)
    click.echo(f"webhook  {stored.id}")
    click.echo(f"secret   {shown_secret(stored.secrets[0])}")


async def _list() -> None:
    from khala.store.webhooks import endpoints

    async with _opened() as (db, _), db.driver() as driver:
        found = await endpoints.of_scope(driver, DEPLOYMENT)
    for endpoint in found:
        state = "enabled" if endpoint.config.is_enabled else f"disabled: {endpoint.health.disabled_reason or 'by hand'}"
        events = ", ".join(endpoint.config.events) or "all events"
        click.echo(f"{endpoint.id}  {endpoint.config.url}  {events}  {state}")


async def _test(webhook_id: UUID) -> None:
    from khala.store.webhooks import endpoints

    async with _opened() as (db, sender):
        async with db.driver() as driver:
            endpoint = await endpoints.read(driver, DEPLOYMENT, webhook_id)
        attempt = await sender.test(endpoint)
    if not attempt.succeeded:
        raise KnownFailure(f"{attempt.problem} It took {attempt.duration_ms} ms. {attempt.response}".rstrip())
    click.echo(f"Delivered: status {attempt.status} after {attempt.duration_ms} ms.")


async def _enable(webhook_id: UUID) -> None:
    from khala.domain.access import Caller
    from khala.store.webhooks import endpoints

    async with _opened() as (db, _):
        await endpoints.change(db, DEPLOYMENT, webhook_id, {"is_enabled": True}, caller=Caller())
    click.echo("Enabled.")


async def _rotate(webhook_id: UUID, overlap: int) -> None:
    from khala.domain.access import Caller
    from khala.store.webhooks import endpoints

    async with _opened() as (db, _):
        stored = await endpoints.rotate_secret(db, DEPLOYMENT, webhook_id, overlap, caller=Caller())
    click.echo(f"secret   {shown_secret(stored.secrets[0])}")


async def _delete(webhook_id: UUID) -> None:
    from khala.domain.access import Caller
    from khala.store.webhooks import endpoints

    async with _opened() as (db, _):
        await endpoints.remove(db, DEPLOYMENT, webhook_id, caller=Caller())
    click.echo("Deleted.")


@asynccontextmanager
async def _opened() -> "AsyncIterator[tuple[Database, EventSender]]":
    """Open the database and a sender. Errors of commands end the program with their message."""
    from khala.components import open_database
    from khala.store.postgres import migrations
    from khala.tools.http_client import GuardedClient
    from khala.tools.webhook_client import WebhookClient
    from khala.webhooks.event_sender import EventSender

    settings = command_settings()
    async with open_database(settings) as db:
        if await migrations.current(db) is None:
            raise KnownFailure("There is no schema yet: run `khala migrate` or `khala serve`.")
        try:
            client = GuardedClient(allow=settings.tools.fetch_allow, needs_tls=True)
            yield db, EventSender(db, WebhookClient(client))
        except KhalaError as error:
            raise KnownFailure(error.message) from error
