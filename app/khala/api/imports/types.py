"""The events of an import."""

from typing import TypeAlias

from khala.api.types import ApiStruct


class ImportCounts(ApiStruct, frozen=True, kw_only=True):
    """The numbers of what was added so far, of what was there before (`known`), and of what was left out, by kind."""

    conversations: int
    known: int
    messages: int
    files: int
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
