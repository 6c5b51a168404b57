"""Loads repositories into workspaces: from the address of a repository, or from an uploaded archive.

A load is all or nothing: the folder has all files of the archive that can be loaded, or is as it was. A second load of
the same source replaces the folder.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from khala.blobs.blob_service import BlobService
from khala.blobs.spool import Spool
from khala.blobs.thread_pool import ThreadPool
from khala.domain.chat import WireStruct
from khala.domain.errors import Conflict, NotFound, PayloadTooLarge, Unavailable
from khala.domain.repository_hosts import RepositoryHost
from khala.store.blobs.blobs import Blob
from khala.store.postgres.database import Database
from khala.store.tools import workspace_files, workspace_folders
from khala.tools import paths
from khala.tools.http_client import GuardedClient, tool_errors
from khala.tools.port import ToolError
from khala.tools.repositories.addresses import RepositoryAddress, parse_address
from khala.tools.repositories.archive_limits import ArchiveBudget, ArchiveLimits
from khala.tools.repositories.archive_reader import (
    ArchiveTarget,
    ReadArchive,
    SkippedFiles,
    archive_too_large,
    read_archive,
)
from khala.tools.repositories.download import ArchiveDownloader
from khala.tools.repositories.errors import RepositoryError

SOURCE_FILE = ".khala-repository.json"
"""The file of a loaded folder that names its source. A folder without it, or of another source, is not replaced."""
LOAD_TIMEOUT_SECONDS = 180.0
MAX_OPEN_LOADS = 16
"""Loads of one process, each with an archive in a temporary file."""
MAX_OWNER_LOADS = 3
MAX_READING_LOADS = 2
"""Archives that are read and stored at once, each with its files in memory."""
BUSY_RETRY_SECONDS = 10
ARCHIVE_SUFFIX = re.compile(r"(\.zip|\.tar\.gz|\.tgz|\.tar)$", re.IGNORECASE)
NOT_IN_A_FOLDER_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\\/]+")

LoadStage: TypeAlias = Literal["downloading", "reading", "storing"]

_threads = ThreadPool(MAX_READING_LOADS, "archive")


class RepositoryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A repository to load. See `parse_address` for `url`, `ref` and `path`; `into` is a folder of the workspace."""

    url: str
    ref: str | None = None
    path: str | None = None
    into: str | None = None


class ArchiveUpload(msgspec.Struct, frozen=True, kw_only=True):
    """An uploaded archive of the thread."""

    blob_id: UUID
    thread_id: UUID
    into: str | None = None


class LoadProgress(WireStruct, frozen=True, kw_only=True):
    """How far a load is: downloaded bytes, or files that were read or are stored."""

    stage: LoadStage
    bytes: int = 0
    files: int = 0


class LoadedRepository(WireStruct, frozen=True, kw_only=True):
    """A loaded folder. `files` and `bytes` count what was loaded, without the file that names the source."""

    folder: str
    source: str
    ref: str | None = None
    commit: str | None = None
    files: int
    bytes: int
    skipped: tuple[SkippedFiles, ...] = ()


class FolderSource(WireStruct, frozen=True, kw_only=True):
    """The content of `SOURCE_FILE`."""

    source: str
    ref: str | None = None
    path: str | None = None
    commit: str | None = None


Report: TypeAlias = Callable[[LoadProgress], None]


class RepositoryLoader:
    """Loads repositories. All failures are `RepositoryError`, and leave the workspace as it was."""

    def __init__(
        self,
        db: Database,
        blob_service: BlobService,
        client: GuardedClient,
        *,
        hosts: Sequence[RepositoryHost],
        limits: ArchiveLimits | None = None,
    ) -> None:
        self._db = db
        self._blob_service = blob_service
        self._hosts = tuple(hosts)
        workspace = workspace_files.limits_of(known=True)
        # One file less: a folder has the file that names its source.
        self._limits = limits or ArchiveLimits(
            files=workspace.files - 1, total_bytes=workspace.total_bytes, file_bytes=workspace_files.MAX_FILE_BYTES
        )
        self._downloader = ArchiveDownloader(client, self._limits)
        self._open: list[UUID] = []
        self._reading = asyncio.Semaphore(MAX_READING_LOADS)

    def address(self, request: RepositoryRequest) -> RepositoryAddress:
        """The repository that the request names. Raises `RepositoryError` (`bad_arguments`, `forbidden`)."""
        _folder(request.into, "repositories")
        return parse_address(request.url, self._hosts, ref=request.ref, path=request.path)

    async def load(self, owner_id: UUID, request: RepositoryRequest, report: Report) -> LoadedRepository:
        """Load a repository of an allowed host."""
        address = self.address(request)
        async with self._started(owner_id), self._blob_service.spool(self._limits.compressed_bytes) as spool:
            report(LoadProgress(stage="downloading"))
            branch = await self._downloader.default_branch(address)
            await self._downloader.download(
                address.archive_url(branch),
                address,
                spool,
                lambda size: report(LoadProgress(stage="downloading", bytes=size)),
            )
            folder = _folder(request.into, address.folder)
            target = ArchiveTarget(folder=folder, only=address.path)
            source = FolderSource(source=address.url, ref=address.ref or branch, path=address.path or None)
            return await self._store(owner_id, spool, target, source, report)

    async def unpack(self, owner_id: UUID, upload: ArchiveUpload, report: Report) -> LoadedRepository:
        """Load an uploaded archive. Its top folder is left out, if it has only one."""
        async with self._started(owner_id), self._blob_service.spool(self._limits.compressed_bytes) as spool:
            blob = await self._blob_service.find(upload.blob_id, upload.thread_id)
            await self._copy(blob, spool)
            name = NOT_IN_A_FOLDER_NAME.sub("-", ARCHIVE_SUFFIX.sub("", blob.name or "")).strip(". ") or str(blob.id)
            folder = _folder(upload.into, f"repositories/{name}")
            target = ArchiveTarget(folder=folder, top_folders=None)
            source = FolderSource(source=f"upload:{blob.name or blob.id}")
            return await self._store(owner_id, spool, target, source, report)

    async def _copy(self, blob: Blob, spool: Spool) -> None:
        if blob.size > self._limits.compressed_bytes:
            raise archive_too_large(self._limits)
        async with self._blob_service.read(blob) as chunks:
            async for chunk in chunks:
                await spool.write(chunk)

    @asynccontextmanager
    async def _started(self, owner_id: UUID) -> AsyncIterator[None]:
        """Count the load, bound its time, and translate errors."""
        if len(self._open) >= MAX_OPEN_LOADS or self._open.count(owner_id) >= MAX_OWNER_LOADS:
            raise RepositoryError(
                "Khala is loading other repositories. Try again in some seconds.",
                code="unavailable",
                retry_after_seconds=BUSY_RETRY_SECONDS,
            )
        self._open.append(owner_id)
        try:
            with _repository_errors():
                async with asyncio.timeout(LOAD_TIMEOUT_SECONDS):
                    yield
        finally:
            self._open.remove(owner_id)

    async def _store(
        self, owner_id: UUID, spool: Spool, target: ArchiveTarget, source: FolderSource, report: Report
    ) -> LoadedRepository:
        async with self._reading:
            read = await self._read(await spool.file(), spool.size, target, report)
            source = msgspec.structs.replace(source, commit=read.commit)
            report(LoadProgress(stage="storing", files=len(read.files)))
            marker = f"{target.folder}/{SOURCE_FILE}"
            files = {path: content for path, content in read.files.items() if path != marker}
            await workspace_folders.replace(
                self._db,
                owner_id,
                target.folder,
                files | {marker: msgspec.json.format(msgspec.json.encode(source), indent=2) + b"\n"},
                marker=marker,
                may_replace=lambda found: _is_of(found, source),
            )
        return LoadedRepository(
            folder=target.folder,
            source=source.source,
            ref=source.ref,
            commit=source.commit,
            files=len(files),
            bytes=sum(map(len, files.values())),
            skipped=read.skipped,
        )

    async def _read(self, file: Path, size: int, target: ArchiveTarget, report: Report) -> ReadArchive:
        """Read the archive in a thread, which ends soon after this is cancelled."""
        loop = asyncio.get_running_loop()
        budget = ArchiveBudget(self._limits, size)

        def report_files(count: int) -> None:
            loop.call_soon_threadsafe(report, LoadProgress(stage="reading", files=count))

        def read() -> ReadArchive:
            with file.open("rb") as opened:
                return read_archive(opened, target, budget, report_files)

        report(LoadProgress(stage="reading"))
        try:
            return await _threads.run(read)
        finally:
            budget.cancelled.set()


def _is_of(found: bytes | None, source: FolderSource) -> bool:
    """Whether a folder with this source file was loaded from the same source."""
    if found is None:
        return False
    try:
        return msgspec.json.decode(found, type=FolderSource).source == source.source
    except msgspec.MsgspecError:
        return False


def _folder(into: str | None, default: str) -> str:
    try:
        return paths.normalize(default if into is None else into, new=True)
    except ToolError as error:
        raise RepositoryError(error.message.replace("path:", "into:"), code="bad_arguments") from error


@contextmanager
def _repository_errors() -> Iterator[None]:
    """Raise all expected errors as `RepositoryError`."""
    try:
        with tool_errors(LOAD_TIMEOUT_SECONDS):
            yield
    except RepositoryError:
        raise
    except ToolError as error:
        code: Literal["timeout", "unavailable"] = "timeout" if error.code == "timeout" else "unavailable"
        raise RepositoryError(error.message, code=code) from error
    except PayloadTooLarge as error:
        raise RepositoryError(error.message, code="too_large") from error
    except Conflict as error:
        raise RepositoryError(error.message, code="conflict") from error
    except NotFound as error:
        raise RepositoryError(error.message, code="not_found") from error
    except Unavailable as error:
        raise RepositoryError(error.message, code="unavailable") from error
