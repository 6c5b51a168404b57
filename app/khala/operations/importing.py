"""`khala import`: an account from another deployment."""

from pathlib import Path

import click

from khala.archive.importer import ArchiveImportResult, ImportOptions, import_archive
from khala.archive.reader import ArchiveReader
from khala.components import open_blobs, open_database
from khala.console import KnownFailure
from khala.domain.archive_format import ArchiveRefusedError
from khala.domain.errors import KhalaError
from khala.identity import passwords
from khala.settings import Settings
from khala.store.postgres import migrations
from khala.store.postgres.database import Database


async def import_account(
    settings: Settings, path: Path, *, email: str | None, password: str | None, trusted: bool, max_bytes: int
) -> None:
    """Import the archive, and print the result. Raises `KnownFailure`; then nothing was imported."""
    try:
        options = ImportOptions(
            email=None if email is None else passwords.normalized_email(email),
            password_hash=None
            if password is None
            else await passwords.hash_password(passwords.validated_password(password)),
            trusted=trusted,
        )
        with ArchiveReader(path, max_bytes=max_bytes) as reader:
            result = await _import(settings, reader, options)
    except (ArchiveRefusedError, KhalaError) as error:
        raise KnownFailure(str(error)) from error
    _print_result(result)


async def _import(settings: Settings, reader: ArchiveReader, options: ImportOptions) -> ArchiveImportResult:
    async with open_database(settings) as db, open_blobs(settings, db) as blob_service:
        if await migrations.current(db) != migrations.head():
            raise KnownFailure("The schema is not up to date: run `khala migrate` or `khala serve`.")
        # Without a statement timeout, because statements check all rows; without a pooler, for one long session.
        direct = Database(db.direct_url, pool_size=2, timeout=None)
        try:
            return await import_archive(direct, blob_service, reader, options)
        finally:
            await direct.close()


def _print_result(result: ArchiveImportResult) -> None:
    for kind, count in result.counts.items():
        click.echo(f"{count:>9,} {kind}")
    for note in result.notes:
        click.echo(f"Note: {note}")
    click.echo(f"Account {result.user_id} {'was imported' if result.added else 'had been imported before'}.")
