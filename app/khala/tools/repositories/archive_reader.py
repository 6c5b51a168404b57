"""Reads the text files of an archive, within limits. It writes nothing: paths are names in the workspace.

All that is not loaded is counted with its reason. An archive over a limit, and content that is not an archive, is an
error, and nothing of it is loaded.
"""

import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import BinaryIO, Literal, TypeAlias

import msgspec

from khala.domain.chat import WireStruct
from khala.store.tools.workspace_files import folders
from khala.tools import paths
from khala.tools.repositories.archive_entries import ArchiveEntry, EntryKind, OpenedArchive, damaged
from khala.tools.repositories.archive_limits import MIB, ArchiveBudget, ArchiveLimits, ReadCancelled
from khala.tools.repositories.errors import RepositoryError
from khala.tools.repositories.tar_reader import GZIP_MAGIC, open_tar_gz
from khala.tools.repositories.zip_reader import open_zip

SkipReason: TypeAlias = Literal[
    "symlink", "hard_link", "device", "encrypted", "unsupported", "unsafe_path", "path_not_utf8", "path_too_long",
    "git_data", "system_file", "duplicate_path", "too_large", "binary",
]  # fmt: skip
LINKS_AND_OTHERS: dict[EntryKind, SkipReason] = {
    "symlink": "symlink", "hard_link": "hard_link", "device": "device", "encrypted": "encrypted",
    "unsupported": "unsupported",
}  # fmt: skip
MAX_EXAMPLES = 5
"""Names that are kept of what was skipped for one reason."""
MAX_EXAMPLE_CHARACTERS = 120
REPORT_INTERVAL_ENTRIES = 200
ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\\]")
DRIVE = re.compile(r"[A-Za-z]:")

__all__ = ["ArchiveBudget", "ArchiveLimits", "ReadArchive", "ReadCancelled", "SkippedFiles", "read_archive"]


class SkippedFiles(WireStruct, frozen=True, kw_only=True):
    """How many files were not loaded for one reason, with some of their names."""

    reason: SkipReason
    count: int
    examples: tuple[str, ...]


class ReadArchive(msgspec.Struct, frozen=True, kw_only=True):
    """The files of an archive, by their path in the workspace."""

    files: dict[str, bytes]
    skipped: tuple[SkippedFiles, ...]
    commit: str | None


class ArchiveTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The folder of the workspace that gets the files, and the selection of files.

    `folder` is a normalized path of the workspace. `top_folders` of the archive are left out: one for the archive of a
    repository; None leaves out the top folder if there is only one. `only` names a folder or file of the repository.
    """

    folder: str
    top_folders: int | None = 1
    only: str = ""


def read_archive(
    file: BinaryIO, target: ArchiveTarget, budget: ArchiveBudget, report: Callable[[int], None] = lambda _: None
) -> ReadArchive:
    """The files of a .zip or .tar.gz archive; `file` is at its beginning. `report` gets the number of files so far.

    Raises `RepositoryError` (`not_an_archive`, `too_large`, `not_found`), and `ReadCancelled`.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size > budget.limits.compressed_bytes:
        raise archive_too_large(budget.limits)
    collector = _Collector(target, budget.limits)
    opened = _open(file, budget)
    for entry in opened.entries:
        collector.add(entry)
        if budget.entries % REPORT_INTERVAL_ENTRIES == 0:
            report(len(collector.files))
    files = collector.files if target.top_folders is not None else _without_top_folder(collector.files, target.folder)
    if not files:
        raise RepositoryError(_nothing(target, collector.summary()), code="not_found")
    return ReadArchive(files=files, skipped=collector.summary(), commit=opened.commit())


def archive_too_large(limits: ArchiveLimits) -> RepositoryError:
    """The error for an archive of too many bytes."""
    return RepositoryError(f"The archive is larger than {limits.compressed_bytes / MIB:,.4g} MiB.", code="too_large")


def _open(file: BinaryIO, budget: ArchiveBudget) -> OpenedArchive:
    magic = file.read(4)
    file.seek(0)
    if magic.startswith(GZIP_MAGIC):
        return open_tar_gz(file, budget)
    if magic in ZIP_MAGICS:
        return open_zip(file, budget)
    raise damaged("it is empty" if not magic else "it begins with other bytes")


def _nothing(target: ArchiveTarget, skipped: Sequence[SkippedFiles]) -> str:
    where = f"below {target.only} " if target.only else ""
    reasons = ", ".join(f"{reason.count:,} × {reason.reason}" for reason in skipped)
    return f"The archive has no text files {where}that can be loaded." + (f" Skipped: {reasons}." if reasons else "")


def _without_top_folder(files: dict[str, bytes], folder: str) -> dict[str, bytes]:
    """The files without the archive's top folder, if all of them are in one."""
    relative = {path.removeprefix(f"{folder}/"): content for path, content in files.items()}
    tops = {path.partition("/")[0] for path in relative}
    if len(tops) != 1 or any("/" not in path for path in relative):
        return files
    return {f"{folder}/{path.partition('/')[2]}": content for path, content in relative.items()}


class _Collector:
    """Decides about each entry, and keeps the files that are loaded."""

    def __init__(self, target: ArchiveTarget, limits: ArchiveLimits) -> None:
        self._target = target
        self._limits = limits
        self._folders: set[str] = set()
        self._total_bytes = 0
        self._skipped: dict[SkipReason, list[str]] = {}
        self._counts: dict[SkipReason, int] = {}
        self.files: dict[str, bytes] = {}

    def add(self, entry: ArchiveEntry) -> None:
        """Load or skip the entry. Raises `RepositoryError` if more is to be loaded than the limits allow."""
        if entry.kind == "folder":
            return
        path, reason = self._place(entry.name)
        if path is None and reason is None:
            return
        reason = reason or LINKS_AND_OTHERS.get(entry.kind) or self._check_place(path or "", entry.size)
        content = b"" if reason is not None else entry.read()
        reason = reason or (None if _is_text(content) else "binary")
        if reason is not None or path is None:
            self._skip(entry.name, reason or "unsafe_path")
        else:
            self._keep(path, content)

    def _place(self, name: str | None) -> tuple[str | None, SkipReason | None]:
        """The path in the workspace, or why there is none; neither for a file that was not asked for."""
        if name is None:
            return None, "path_not_utf8"
        segments = [segment for segment in unicodedata.normalize("NFC", name).split("/") if segment not in ("", ".")]
        if UNSAFE.search(name) or name.startswith("/") or DRIVE.match(name) or ".." in segments:
            return None, "unsafe_path"
        if segments and len(segments) <= (self._target.top_folders or 0):
            return None, "unsafe_path"
        segments = segments[self._target.top_folders or 0 :]
        relative, only = "/".join(segments), self._target.only
        if not segments or (only and relative != only and not relative.startswith(f"{only}/")):
            return None, None
        return f"{self._target.folder}/{relative}", _reserved(segments)

    def _check_place(self, path: str, size: int) -> SkipReason | None:
        if len(path) > paths.MAX_PATH_CHARACTERS or path.count("/") >= paths.MAX_PATH_SEGMENTS:
            return "path_too_long"
        if path in self.files or path in self._folders or any(folder in self.files for folder in folders(path)):
            return "duplicate_path"
        return "too_large" if size > self._limits.file_bytes else None

    def _keep(self, path: str, content: bytes) -> None:
        self._total_bytes += len(content)
        limits = self._limits
        if len(self.files) >= limits.files:
            raise RepositoryError(
                f"There are more than {limits.files:,} files to load, and the workspace has room for no more. "
                "Load a folder of the repository (path), or delete files first.",
                code="too_large",
            )
        if self._total_bytes > limits.total_bytes:
            raise RepositoryError(
                f"The files have more than {limits.total_bytes:,} bytes, and the workspace has room for no more. "
                "Load a folder of the repository (path), or delete files first.",
                code="too_large",
            )
        self.files[path] = content
        self._folders.update(folders(path))

    def _skip(self, name: str | None, reason: SkipReason) -> None:
        self._counts[reason] = self._counts.get(reason, 0) + 1
        examples = self._skipped.setdefault(reason, [])
        if name is not None and len(examples) < MAX_EXAMPLES:
            examples.append(UNSAFE.sub("\ufffd", name)[:MAX_EXAMPLE_CHARACTERS])

    def summary(self) -> tuple[SkippedFiles, ...]:
        """The skipped files, the most frequent reason first."""
        ordered: Iterable[SkipReason] = sorted(self._counts, key=lambda reason: (-self._counts[reason], reason))
        return tuple(
            SkippedFiles(reason=reason, count=self._counts[reason], examples=tuple(self._skipped[reason]))
            for reason in ordered
        )


def _reserved(segments: list[str]) -> SkipReason | None:
    if any(segment.lower() == ".git" for segment in segments):
        return "git_data"
    if "__MACOSX" in segments or segments[-1] == ".DS_Store":
        return "system_file"
    return None


def _is_text(content: bytes) -> bool:
    if b"\0" in content:
        return False
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
