"""Reads an untrusted archive: names, sizes, checksums and lines are checked before use."""

import hashlib
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from khala.archive.checks import check
from khala.domain.archive_format import (
    BLOB_NAME,
    FORMAT,
    MANIFEST,
    MAX_ENTRIES,
    MAX_LINE_BYTES,
    MAX_MANIFEST_BYTES,
    VERSION,
    ArchivedFile,
    ArchiveManifest,
    ArchiveRefusedError,
)
from khala.store.operations.archive_kinds import RowKind
from khala.store.operations.archive_lines import line_type
from khala.store.operations.archive_rows import KINDS

BATCH_LINES = 500
BATCH_BYTES = 8 << 20
"""A batch ends after so many lines or so many bytes, whichever comes first."""
CHUNK_BYTES = 1 << 20
COMPRESSION_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
ENCRYPTED_FLAG = 0x1
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError)
"""The errors of the ZIP library for invalid or inconsistent ZIP files."""


class ArchiveReader:
    """An archive on disk. Every method raises `ArchiveRefusedError` if the archive is invalid.

    Names in the archive are never used as paths. No file yields more bytes than the archive's directory says, and all
    together are at most `max_bytes`.
    """

    def __init__(self, path: Path, *, max_bytes: int) -> None:
        try:
            self._zip = zipfile.ZipFile(path)
        except ZIP_ERRORS as error:
            raise ArchiveRefusedError(f"{path} is not a ZIP file: {error}.") from error
        try:
            self._entries = _entries(self._zip, max_bytes)
            self.digest, self.manifest = self._manifest()
            self._files = {file.name: file for file in self.manifest.files}
            self._check_manifest()
        except BaseException:
            self._zip.close()
            raise

    def __enter__(self) -> Self:
        """The archive, which closes with the context."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._zip.close()

    @cached_property
    def blobs(self) -> dict[str, int]:
        """The size of each blob in the archive, by its SHA-256."""
        matches = ((BLOB_NAME.fullmatch(name), info.file_size) for name, info in self._entries.items())
        missing = {blob.sha256 for blob in self.manifest.missing}
        return {match[1]: size for match, size in matches if match and match[1] not in missing}

    def check(self) -> None:
        """Read the whole archive, and compare it with its checksums."""
        for kind in KINDS:
            for _ in self.lines(kind):
                pass
        for sha256 in self.blobs:
            for _ in self.chunks(sha256):
                pass

    def chunks(self, sha256: str) -> Iterator[bytes]:
        """Yield the bytes of a blob. Raises after the last chunk if their hash differs from the blob's name."""
        digest = hashlib.sha256()
        with _reading(f"blobs/{sha256}"), self._zip.open(f"blobs/{sha256}") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                yield chunk
        if digest.hexdigest() != sha256:
            raise ArchiveRefusedError(f"The content of the blob {sha256} does not match its hash.")

    def count(self, kind: RowKind) -> int:
        """The number of lines of this kind."""
        file = self._files.get(kind.file)
        return 0 if file is None else file.lines

    def lines(self, kind: RowKind) -> Iterator[list[Any]]:
        """Yield this kind's lines in batches. Raises before the last batch if they don't match the manifest."""
        if kind.file not in self._files:
            return
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(line_type(kind))
        batch: list[Any] = []
        size = 0
        for number, line in enumerate(self._raw_lines(self._files[kind.file]), 1):
            try:
                data = decoder.decode(line).data
                check(kind.name, data)
            except (msgspec.DecodeError, ValueError) as error:
                raise ArchiveRefusedError(f"{kind.file}, line {number}: {error}") from error
            batch.append(data)
            size += len(line)
            if len(batch) >= BATCH_LINES or size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
        yield batch

    def _raw_lines(self, file: ArchivedFile) -> Iterator[bytes]:
        digest, lines = hashlib.sha256(), 0
        with _reading(file.name), self._zip.open(file.name) as opened:
            while line := opened.readline(MAX_LINE_BYTES):
                if not line.endswith(b"\n"):
                    raise ArchiveRefusedError(f"{file.name}, line {lines + 1} is too long or incomplete.")
                digest.update(line)
                lines += 1
                yield line
        if (lines, digest.hexdigest()) != (file.lines, file.sha256):
            raise ArchiveRefusedError(f"{file.name} does not match the manifest.")

    def _manifest(self) -> tuple[str, ArchiveManifest]:
        info = self._entries.get(MANIFEST)
        if info is None or info.file_size > MAX_MANIFEST_BYTES:
            raise ArchiveRefusedError(f"{MANIFEST} is missing or too large: this is not a Khala archive.")
        with _reading(MANIFEST):
            content = self._zip.read(MANIFEST)
        try:
            decoded = msgspec.json.decode(content)
            if not isinstance(decoded, dict) or decoded.get("format") != FORMAT:
                raise ArchiveRefusedError("This is not a Khala archive.")
            if decoded.get("version") != VERSION:
                raise ArchiveRefusedError(
                    f"The archive has version {decoded.get('version')!r}; this Khala reads {VERSION}."
                )
            return hashlib.sha256(content).hexdigest(), msgspec.convert(decoded, ArchiveManifest)
        except msgspec.DecodeError as error:
            raise ArchiveRefusedError(f"{MANIFEST}: {error}") from error

    def _check_manifest(self) -> None:
        """Raise unless the archive has exactly the files in its manifest, and all kinds of lines of its time."""
        required, known = {kind.file for kind in KINDS if not kind.added_later}, {kind.file for kind in KINDS}
        if len(self._files) != len(self.manifest.files) or not required <= set(self._files) <= known:
            raise ArchiveRefusedError("The manifest must list each file of lines of an archive once, and no others.")
        for name, file in self._files.items():
            if name not in self._entries or self._entries[name].file_size != file.bytes:
                raise ArchiveRefusedError(f"{name} is missing, or its size differs from the manifest.")
        blobs = self.blobs
        if (len(blobs), sum(blobs.values())) != (self.manifest.blobs, self.manifest.blob_bytes):
            raise ArchiveRefusedError("The blobs do not match the manifest.")


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Translate errors of the ZIP library to errors that name the damaged file."""
    try:
        yield
    except ZIP_ERRORS as error:
        raise ArchiveRefusedError(f"{name} is damaged: {error}.") from error


def _entries(archive: zipfile.ZipFile, max_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """The files by name. Raises for unknown and duplicate names, and for too many bytes."""
    infos = archive.infolist()
    known_names = {MANIFEST, *(kind.file for kind in KINDS)}
    if len(infos) > MAX_ENTRIES:
        raise ArchiveRefusedError(f"There are {len(infos):,} files; an archive has at most {MAX_ENTRIES:,}.")
    entries: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        if info.filename not in known_names and not BLOB_NAME.fullmatch(info.filename):
            raise ArchiveRefusedError(f"The file {info.filename[:100]!r} does not belong in an archive.")
        if info.filename in entries:
            raise ArchiveRefusedError(f"{info.filename} occurs twice.")
        if info.compress_type not in COMPRESSION_METHODS or info.flag_bits & ENCRYPTED_FLAG:
            raise ArchiveRefusedError(f"{info.filename} is encrypted, or uses an unsupported compression.")
        entries[info.filename] = info
    size = sum(info.file_size for info in infos)
    if size > max_bytes:
        raise ArchiveRefusedError(f"Unpacked, the archive has {size:,} bytes, more than the limit of {max_bytes:,}.")
    return entries
