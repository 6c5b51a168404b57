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
    """Import the archive, and say what came of it. Raises `KnownFailure`; nothing has been imported then."""
    try:
        options = ImportOptions(
            email=None if email is None else passwords.normalized_email(email),
            password_hash=None
            if password is None
            else await passwords.hash_password(passwords.validated_password(password)),
            trusted=trusted,
        )
        with ArchiveReader(path, max_bytes=max_bytes) as reader:
            done = await _imported(settings, reader, options)
    except (ArchiveRefusedError, KhalaError) as error:
        raise KnownFailure(str(error)) from error
    _tell(done)


async def _imported(settings: Settings, reader: ArchiveReader, options: ImportOptions) -> ArchiveImportResult:
    async with open_database(settings) as db, open_blobs(settings, db) as blob_service:
        if await migrations.current(db) != migrations.head():
            raise KnownFailure("The schema is not up to date: run `khala migrate` or `khala serve`.")
        # Without a limit on statements, which check all rows at once; past a pooler, because it is one long session.
        long = Database(db.direct_url, pool_size=2, timeout=None)
        try:
            return await import_archive(long, blob_service, reader, options)
        finally:
            await long.close()


def _tell(done: ArchiveImportResult) -> None:
    for kind, count in done.counts.items():
        click.echo(f"{count:>9,} {kind}")
    for note in done.notes:
        click.echo(f"Note: {note}")
    click.echo(f"Account {done.user_id} {'is imported' if done.added else 'was there already'}.")
