"""Reads the files of a workspace that a search looks through."""

from datetime import datetime
from uuid import UUID

import msgspec

from khala.store.postgres.database import Driver

MAX_BYTES = 2 << 20
"""Bytes of files of one search: those that were changed last."""

NEWEST = f"""
    SELECT path, content, changed_at FROM (
        SELECT path, content, changed_at, sum(octet_length(content)) OVER (ORDER BY changed_at DESC, path) AS bytes
        FROM files WHERE owner_id = $1 AND changed_at <= $2
    ) AS newest WHERE bytes <= {MAX_BYTES}
"""


class FoundFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of text."""

    path: str
    text: str
    changed_at: datetime


async def read(driver: Driver, owner_id: UUID, *, until: datetime) -> list[FoundFile]:
    """The files of this owner that were changed last, without those that are not text."""
    rows = await driver.fetch(NEWEST, owner_id, until)
    decoded = [(row, _text(row["content"])) for row in rows]
    return [
        FoundFile(path=row["path"], text=text, changed_at=row["changed_at"])
        for row, text in decoded
        if text is not None
    ]


def _text(content: bytes) -> str | None:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None
