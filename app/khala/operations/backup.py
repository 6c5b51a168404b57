"""`khala backup`: makes a dump or a base backup of a running server, with all blobs. A partial backup is deleted."""

import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Literal, TypeAlias

import click

from khala.blobs import store_url as blob_settings
from khala.blobs.port import BlobStore
from khala.blobs.store_url import FOLDER
from khala.operations import blob_copies
from khala.operations.programs import OperationFailed, Postgres, postgres
from khala.settings import Settings

BackupKind: TypeAlias = Literal["dump", "base"]
STORED = "SELECT encode(sha256, 'hex') AS name FROM objects WHERE stored"
DUMP = (
    "--format=custom", "--no-owner", "--no-privileges", "--no-unlogged-table-data", "--lock-wait-timeout=60s",
)  # fmt: skip
BASE = ("--format=plain", "--wal-method=stream", "--checkpoint=fast")


async def back_up(settings: Settings, kind: BackupKind, folder: Path, *, keep: int | None) -> None:
    """Make FOLDER/<time>-<kind>, and add blobs to FOLDER/blobs, which all backups share.

    `keep`: after a dump, delete all but this number of dumps, and if there are no base backups also the blobs that no
    dump names. Raises `OperationFailed` and `DamagedBlob`; then there is no new backup.
    """
    final = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{kind}"
    with _private_files(), _locked(folder), _temporary_folder(final) as part:
        async with postgres(settings) as server:
            # Blobs are copied before and after the database. Bytes are stored before a row names them, so the second
            # copy has the blobs of rows that were added since the first. Bytes are deleted only after their last row,
            # so the first copy has the blobs that were garbage-collected before the second.
            await save_blobs(settings, folder / "blobs")
            await (_dump(server, part) if kind == "dump" else _base(server, part))
            await save_blobs(settings, folder / "blobs")
        if kind == "dump":
            blob_copies.check(folder / "blobs", blob_copies.names(part / "blobs"))
        part.rename(final)
        if kind == "dump" and keep is not None:
            _delete_old_dumps(folder, keep)
    click.echo(final)


async def save_blobs(settings: Settings, folder: Path) -> None:
    """Copy the blobs that the folder does not have yet."""
    async with blob_store(settings) as store:
        source = None if settings.blobs.url else settings.process.home / FOLDER
        click.echo(await blob_copies.save(store, source, folder))


@asynccontextmanager
async def blob_store(settings: Settings) -> AsyncIterator[BlobStore]:
    """The store of the deployment's blobs."""
    store = blob_settings.open_store(settings.blobs.url, settings.process.home)
    try:
        yield store
    finally:
        await store.aclose()


async def _dump(server: Postgres, part: Path) -> None:
    """Make a dump, and a list of the blobs in the dump, which may differ from those in the database now."""
    dump, script = part / "database.dump", part / "objects.sql"
    await server.run("pg_dump", *DUMP, f"--file={dump}")
    await server.run("pg_restore", "--data-only", "--table=objects", f"--file={script}", str(dump))
    with script.open() as lines, (part / "blobs").open("w") as names:
        names.writelines(f"{name}\n" for name in stored_names(lines))
    script.unlink()


def stored_names(script: Iterator[str]) -> Iterator[str]:
    """The names of the objects that are stored, in a script that copies the table `objects`."""
    columns: list[str] = []
    for line in script:
        if line.startswith("COPY public.objects ("):
            columns = line[line.index("(") + 1 : line.index(")")].split(", ")
        elif line == "\\.\n":
            columns = []
        elif columns:
            row = dict(zip(columns, line.rstrip("\n").split("\t"), strict=True))
            if row["stored"] == "t":
                yield row["sha256"].removeprefix("\\\\x")


async def _base(server: Postgres, part: Path) -> None:
    """Back up the whole cluster, and list the blobs of now, because it may be restored to a later moment."""
    await server.run("pg_basebackup", f"--pgdata={part / 'base'}", *BASE)
    async with server.connected() as connection:
        rows = await connection.fetch(STORED)
    (part / "blobs").write_text("".join(f"{row['name']}\n" for row in rows))


def _delete_old_dumps(folder: Path, keep: int) -> None:
    """Delete all but the newest dumps. If there are no base backups, delete the blobs that no dump names."""
    dumps = sorted(folder.glob("*-dump"), reverse=True)
    for old in dumps[keep:]:
        shutil.rmtree(old)
    if any(folder.glob("*-base")):
        return
    used = {name for dump in dumps[:keep] for name in blob_copies.names(dump / "blobs")}
    for blob in (folder / "blobs").rglob("*"):
        if blob.is_file() and blob.name not in used:
            blob.unlink()


@contextmanager
def _private_files() -> Iterator[None]:
    """Make new files readable by this user only, because they hold conversations. Signals exit with clean-up."""
    previous = os.umask(0o077)
    handlers = {number: signal.signal(number, _stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        os.umask(previous)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _stop(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Allow one backup to a folder at a time, and remove the files of one that was killed."""
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    lock = folder / "lock"
    try:
        lock.mkdir()
    except FileExistsError:
        if _is_running(lock / "pid"):
            raise OperationFailed(f"Another backup to {folder} is running. Wait until it ends.") from None
        click.echo(f"An earlier backup to {folder} was interrupted. Removing its files.", err=True)
        for incomplete in folder.glob("*.part"):
            shutil.rmtree(incomplete)
    (lock / "pid").write_text(f"{os.getpid()}\n")
    try:
        yield
    finally:
        shutil.rmtree(lock, ignore_errors=True)


def _is_running(path: Path) -> bool:
    """Whether the process with the id in the file is running."""
    try:
        os.kill(int(path.read_text()), 0)
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def _temporary_folder(final: Path) -> Iterator[Path]:
    """A temporary folder for the backup, deleted at the end unless it was renamed to its final name."""
    part = final.with_name(f"{final.name}.part")
    part.mkdir()
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)
