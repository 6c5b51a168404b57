"""The format of an account's archive: a ZIP file of JSON lines and bytes, with a manifest."""

import re
from datetime import datetime
from typing import Annotated, Literal, TypeAlias
from uuid import UUID

import msgspec

from khala.domain.chat import WireStruct

FORMAT: Literal["khala-archive"] = "khala-archive"
VERSION = 1
"""Increases when an older Khala can no longer read the archives of a newer one."""
MANIFEST = "manifest.json"
BLOB_NAME = re.compile(r"blobs/([0-9a-f]{64})")

MAX_LINE_BYTES = 64 << 20
"""Bytes of one JSON line."""
MAX_MANIFEST_BYTES = 64 << 20
MAX_ENTRIES = 2_000_000
"""Files in one archive."""

Sha256: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
MissingReason: TypeAlias = Literal["gone", "damaged", "unavailable"]
"""The blob store has no such blob, has bytes with another hash, or did not respond."""


class ArchiveRefusedError(Exception):
    """The archive can't be imported, for the reason in the message. Nothing was imported."""


class ArchivedFile(WireStruct, frozen=True, kw_only=True):
    """A file of JSON lines: the number of its lines and bytes, and the SHA-256 of its bytes."""

    name: str
    lines: Annotated[int, msgspec.Meta(ge=0)]
    bytes: Annotated[int, msgspec.Meta(ge=0)]
    sha256: Sha256


class MissingBlob(WireStruct, frozen=True, kw_only=True):
    """A blob that a line refers to, but whose bytes are not in the archive."""

    sha256: Sha256
    size: int
    reason: MissingReason


class ArchiveManifest(WireStruct, frozen=True, kw_only=True, omit_defaults=False, forbid_unknown_fields=True):
    """The contents of the archive. `blobs` and `blob_bytes` count each distinct content once."""

    format: Literal["khala-archive"]
    version: int
    khala: str
    schema: str
    """The schema revision of the database that the rows were read from."""
    user_id: UUID
    exported_at: datetime
    files: tuple[ArchivedFile, ...]
    blobs: Annotated[int, msgspec.Meta(ge=0)]
    blob_bytes: Annotated[int, msgspec.Meta(ge=0)]
    missing: tuple[MissingBlob, ...]


def archived_blob_name(sha256: bytes) -> str:
    """The name of the archive's file with the bytes of this hash."""
    return f"blobs/{sha256.hex()}"
