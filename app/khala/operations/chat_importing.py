"""`khala import-chats`: conversations from the export of another product."""

from pathlib import Path
from uuid import UUID

import click

from khala.chat_imports.importer import ChatImporter
from khala.components import open_blobs, open_database
from khala.console import KnownFailure
from khala.domain.access import Caller
from khala.domain.errors import KhalaError
from khala.settings import Settings
from khala.store.accounts import accounts
from khala.store.postgres import migrations


async def import_export(settings: Settings, path: Path, user_id: UUID) -> None:
    """Import the export, and print the report. Raises `KnownFailure`; what was read before stays imported."""
    async with open_database(settings) as db, open_blobs(settings, db) as blob_service:
        if await migrations.current(db) != migrations.head():
            raise KnownFailure("The schema is not up to date: run `khala migrate` or `khala serve`.")
        async with db.driver() as driver:
            if not await driver.fetchval("SELECT EXISTS (SELECT FROM users WHERE id = $1)", user_id):
                raise KnownFailure("There is no account with this id.")
            caller = Caller(user_id=user_id, name=await accounts.name_of(driver, user_id))
        importer = ChatImporter(db, blob_service, caller)
        try:
            report = await importer.run(path)
        except KhalaError as error:
            raise KnownFailure(f"{error.message} {importer.report.conversations:,} were imported.") from error
    click.echo(f"{report.conversations:>9,} conversations, and {report.known:,} that were there before")
    click.echo(f"{report.messages:>9,} messages")
    click.echo(f"{report.files:>9,} files")
    for kind, count in report.left_out.items():
        click.echo(f"{count:>9,} left out: {kind}")
