"""`khala import-chats`: conversations from the export of another product."""

from pathlib import Path

import click

from khala.chat_imports.importer import ChatImporter
from khala.components import open_blobs, open_database
from khala.console import KnownFailure
from khala.domain.access import Caller
from khala.domain.errors import Conflict, KhalaError, NotFound
from khala.settings import Settings
from khala.store.accounts import accounts
from khala.store.accounts.account_names import find_account
from khala.store.postgres import migrations


async def import_export(settings: Settings, path: Path, account: str) -> None:
    """Import the export into the account with this id or address, and print the report.

    Raises `KnownFailure`; what was read before stays imported.
    """
    async with open_database(settings) as db, open_blobs(settings, db) as blob_service:
        if await migrations.current(db) != migrations.head():
            raise KnownFailure("The schema is not up to date: run `khala migrate` or `khala serve`.")
        async with db.driver() as driver:
            try:
                user_id = await find_account(driver, account)
            except (NotFound, Conflict) as error:
                raise KnownFailure(error.message) from error
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
