"""Replaces a folder of the workspace by other files, in one transaction: all of them are stored, or none."""

from collections.abc import Callable, Iterator, Mapping
from uuid import UUID

from khala.domain.errors import Conflict, PayloadTooLarge
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.tools import workspace_files, workspace_owners

MAX_BATCH_BYTES = 2 << 20
"""Bytes of files of one statement; a larger file has its own."""
MAX_BATCH_FILES = 500

REST = """
    SELECT count(*) FILTER (WHERE NOT inside) AS many, coalesce(sum(size) FILTER (WHERE NOT inside), 0) AS bytes,
           count(*) FILTER (WHERE inside) AS replaced, min(path) FILTER (WHERE path = ANY ($3::text[])) AS in_the_way,
           EXISTS (SELECT FROM users WHERE id = $1) AS known
    FROM (SELECT path, octet_length(content) AS size, starts_with(path, $2) AS inside
          FROM files WHERE owner_id = $1) AS found
"""
DELETE_OTHERS = """
    DELETE FROM files WHERE owner_id = $1 AND starts_with(path, $2)
    AND NOT EXISTS (SELECT FROM unnest($3::text[]) AS stays (path) WHERE stays.path = files.path)
"""
WRITE_BATCH = """
    INSERT INTO files (owner_id, path, content)
    SELECT $1, path, content FROM unnest($2::text[], $3::bytea[]) AS new (path, content)
    ON CONFLICT (owner_id, path) DO UPDATE SET content = EXCLUDED.content, changed_at = now()
    WHERE files.content IS DISTINCT FROM EXCLUDED.content
"""


@retried
async def replace(
    db: Database,
    owner_id: UUID,
    folder: str,
    files: Mapping[str, bytes],
    *,
    marker: str,
    may_replace: Callable[[bytes | None], bool],
) -> None:
    """Make these the only files below the folder. Files whose content stays the same are not written.

    If the folder has files, `may_replace` decides by the content of its file `marker`, or None. Raises `Conflict` if it
    refuses, or if the folder is a file, and `PayloadTooLarge` over the limits of the workspace.
    """
    async with workspace_owners.changing(db, owner_id) as driver:
        await _check(driver, owner_id, folder, files, may_replace, marker)
        await driver.execute(DELETE_OTHERS, owner_id, f"{folder}/", list(files))
        for batch in _batches(files):
            await driver.execute(WRITE_BATCH, owner_id, list(batch), list(batch.values()))


async def _check(
    driver: Driver,
    owner_id: UUID,
    folder: str,
    files: Mapping[str, bytes],
    may_replace: Callable[[bytes | None], bool],
    marker: str,
) -> None:
    rest = await driver.fetchrow(REST, owner_id, f"{folder}/", [*workspace_files.folders(folder), folder])
    assert rest is not None
    if rest["in_the_way"] is not None:
        raise Conflict(f"{folder} can't be a folder: {rest['in_the_way']} is a file.")
    if rest["replaced"]:
        found = await workspace_files.contents(driver, owner_id, [marker])
        if not may_replace(found.get(marker)):
            raise Conflict(f"The folder {folder} has other files. Choose another folder, or delete them first.")
    limits = workspace_files.limits_of(known=rest["known"])
    if rest["many"] + len(files) > limits.files:
        raise PayloadTooLarge(f"There are at most {limits.files:,} files. Delete some first.")
    if rest["bytes"] + sum(map(len, files.values())) > limits.total_bytes:
        raise PayloadTooLarge(f"All files together have at most {limits.total_bytes:,} bytes. Delete some first.")


def _batches(files: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
    batch: dict[str, bytes] = {}
    size = 0
    for path, content in files.items():
        if batch and (size + len(content) > MAX_BATCH_BYTES or len(batch) >= MAX_BATCH_FILES):
            yield batch
            batch, size = {}, 0
        batch[path] = content
        size += len(content)
    if batch:
        yield batch
