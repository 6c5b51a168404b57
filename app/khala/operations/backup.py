"""`khala backup`: a dump or a base backup of a server at work, whole or not at all, with the bytes of all blobs."""

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

    `keep`: after a dump, delete all dumps but so many, and without base backups also the blobs that none of them names.
    Raises `OperationFailed` and `DamagedBlob`; half a backup is none.
    """
    made = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{kind}"
    with _private(), _alone(folder), _part_of(made) as part:
        async with postgres(settings) as server:
            # Blobs, database, blobs: bytes are there before a row names them, so the second look has what the rows
            # name that came since the first; and bytes go only after their last row, so the first look has what was
            # collected before the second.
            await save_blobs(settings, folder / "blobs")
            await (_dump(server, part) if kind == "dump" else _base(server, part))
            await save_blobs(settings, folder / "blobs")
        if kind == "dump":
            blob_copies.check(folder / "blobs", blob_copies.names(part / "blobs"))
        part.rename(made)
        if kind == "dump" and keep is not None:
            _forget(folder, keep)
    click.echo(made)


async def save_blobs(settings: Settings, folder: Path) -> None:
    """Copy the blobs that the folder has not yet."""
    async with blob_store(settings) as store:
        kept = None if settings.blobs.url else settings.process.home / FOLDER
        click.echo(await blob_copies.save(store, kept, folder))


@asynccontextmanager
async def blob_store(settings: Settings) -> AsyncIterator[BlobStore]:
    """The store of the deployment's blobs."""
    store = blob_settings.open_store(settings.blobs.url, settings.process.home)
    try:
        yield store
    finally:
        await store.aclose()


async def _dump(server: Postgres, part: Path) -> None:
    """A dump, and the names of the blobs as the dump has them: those of now may be others."""
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
    """The whole cluster, and names of now: more than the backup has, because those of a later moment may be wanted."""
    await server.run("pg_basebackup", f"--pgdata={part / 'base'}", *BASE)
    async with server.connected() as connection:
        found = await connection.fetch(STORED)
    (part / "blobs").write_text("".join(f"{row['name']}\n" for row in found))


def _forget(folder: Path, keep: int) -> None:
    """Delete all dumps but the newest, and without base backups the blobs that none of them names."""
    dumps = sorted(folder.glob("*-dump"), reverse=True)
    for old in dumps[keep:]:
        shutil.rmtree(old)
    if any(folder.glob("*-base")):
        return
    named = {name for dump in dumps[:keep] for name in blob_copies.names(dump / "blobs")}
    for blob in (folder / "blobs").rglob("*"):
        if blob.is_file() and blob.name not in named:
            blob.unlink()


@contextmanager
def _private() -> Iterator[None]:
    """A backup has what people wrote: nobody else may read what is made here. Signals end it in order."""
    before = os.umask(0o077)
    handlers = {number: signal.signal(number, _stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        os.umask(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _stop(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One backup to a folder at a time. What one left behind that was killed is removed."""
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    lock = folder / "lock"
    try:
        lock.mkdir()
    except FileExistsError:
        if _runs(lock / "pid"):
            raise OperationFailed(f"Another backup to {folder} is under way.") from None
        click.echo(f"A backup to {folder} was interrupted; what it left is removed.", err=True)
        for left in folder.glob("*.part"):
            shutil.rmtree(left)
    (lock / "pid").write_text(f"{os.getpid()}\n")
    try:
        yield
    finally:
        shutil.rmtree(lock, ignore_errors=True)


def _runs(path: Path) -> bool:
    """Whether the process runs whose id is in the file."""
    try:
        os.kill(int(path.read_text()), 0)
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def _part_of(made: Path) -> Iterator[Path]:
    """A temporary folder for the backup, deleted at the end unless it was renamed to its final name."""
    part = made.with_name(f"{made.name}.part")
    part.mkdir()
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)
