"""The entries of an archive, as both readers describe them."""

from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

import msgspec

from khala.tools.repositories.errors import RepositoryError

EntryKind: TypeAlias = Literal["file", "folder", "symlink", "hard_link", "device", "encrypted", "unsupported"]


class ArchiveEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry. `name` is None if it is not UTF-8.

    `size` is what the archive declares, in bytes. `read` returns the content; call it before the next entry, or not.
    """

    name: str | None
    kind: EntryKind
    size: int
    read: Callable[[], bytes]


class OpenedArchive(msgspec.Struct, frozen=True, kw_only=True):
    """An archive whose entries are read one after the other. `commit` is known after the last entry."""

    entries: Iterator[ArchiveEntry]
    commit: Callable[[], str | None]


def damaged(reason: str) -> RepositoryError:
    """The error for content that is no archive, or not a whole one."""
    return RepositoryError(f"The content is not a .zip or .tar.gz archive: {reason}.", code="not_an_archive")


def commit_of(comment: bytes) -> str | None:
    """The commit's hash, if git wrote one as the comment of the archive."""
    text = comment.strip().decode("ascii", "replace")
    is_hash = len(text) in (40, 64) and set(text) <= set("0123456789abcdef")
    return text if is_hash else None
