"""The events of an import."""

from typing import TypeAlias
from uuid import UUID

from khala.api.types import ApiStruct


class ImportedThread(ApiStruct, frozen=True, kw_only=True):
    """A thread that the import has added."""

    id: UUID
    title: str | None = None


class ImportCounts(ApiStruct, frozen=True, kw_only=True):
    """The numbers of what was added so far, of what was there before (`known`), and of what was left out, by kind.

    `threads` are the first ten threads that were added.
    """

    conversations: int
    known: int
    messages: int
    files: int
    threads: list[ImportedThread]
    left_out: dict[str, int]


class ImportProgress(ApiStruct, frozen=True, kw_only=True, tag_field="type", tag="progress"):
    """The report so far."""

    report: ImportCounts


class ImportEnded(ApiStruct, frozen=True, kw_only=True, tag_field="type", tag="imported"):
    """The whole export is imported."""

    report: ImportCounts


class ImportFailed(ApiStruct, frozen=True, kw_only=True, tag_field="type", tag="failed"):
    """The import ended early. What the report counts stays imported, and a repetition goes on."""

    code: str
    message: str
    report: ImportCounts


ImportEvent: TypeAlias = ImportProgress | ImportEnded | ImportFailed
