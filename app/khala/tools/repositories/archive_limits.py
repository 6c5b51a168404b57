"""The limits of reading an archive, and the work that a reader has used so far."""

import threading

import msgspec

from khala.tools.repositories.errors import RepositoryError

MIB = 1 << 20


class ArchiveLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one archive. Sizes are bytes.

    `files` and `total_bytes` limit what is loaded, `file_bytes` one file. `expanded_bytes` limits what is decompressed,
    with what is skipped. Above `ratio_from_bytes`, an archive may expand to `max_ratio` times its size.
    """

    files: int
    total_bytes: int
    file_bytes: int = MIB
    compressed_bytes: int = 100 * MIB
    expanded_bytes: int = 1024 * MIB
    max_ratio: int = 100
    ratio_from_bytes: int = 32 * MIB
    entries: int = 50_000
    header_bytes: int = 64 * 1024
    """Bytes of one header of a tar archive that precedes a file."""
    directory_bytes: int = 8 * MIB
    """Bytes of the directory of a zip archive."""


class ReadCancelled(Exception):
    """The caller of the reader has ended."""


class ArchiveBudget:
    """Counts entries and decompressed bytes of one archive. Another thread may set `cancelled`."""

    def __init__(self, limits: ArchiveLimits, compressed_bytes: int) -> None:
        self.limits = limits
        self.cancelled = threading.Event()
        self.entries = 0
        self._expanded = 0
        by_ratio = max(limits.ratio_from_bytes, compressed_bytes * limits.max_ratio)
        self._max_expanded = min(limits.expanded_bytes, by_ratio)

    def check(self) -> None:
        """Raise `ReadCancelled` if nobody waits."""
        if self.cancelled.is_set():
            raise ReadCancelled

    def count_entry(self) -> None:
        """Count a file, folder, link or header. Raises `RepositoryError` (`too_large`)."""
        self.check()
        self.entries += 1
        if self.entries > self.limits.entries:
            raise too_many_entries(self.limits)

    def expand(self, size: int) -> None:
        """Count decompressed bytes. Raises `RepositoryError` (`too_large`)."""
        self.check()
        self._expanded += size
        if self._expanded > self._max_expanded:
            raise RepositoryError(
                f"The archive expands to more than {self._max_expanded / MIB:,.4g} MiB.", code="too_large"
            )


def too_many_entries(limits: ArchiveLimits) -> RepositoryError:
    """The error for an archive with more entries than are read."""
    return RepositoryError(f"The archive has more than {limits.entries:,} files and folders.", code="too_large")
