"""Workspace files: rows by owner and path. They are independent of the file system of the machine."""

from collections.abc import Callable, Iterator, Sequence
from uuid import UUID

import msgspec

from khala.domain.chat import WireStruct
from khala.domain.errors import Conflict, NotFound, PayloadTooLarge
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.tools import workspace_owners

MAX_FILE_BYTES = 1 << 20
"""Bytes of one file."""
MAX_FILES = 10_000
"""Files of one user."""
MAX_GUEST_FILES = 1000
"""Files of a guest's thread."""
MAX_TOTAL_BYTES = 50 << 20
"""Bytes of all files of one user."""
MAX_GUEST_BYTES = 5 << 20
"""Bytes of all files of a guest's thread. It is small, because guests can create any number of threads."""

WRITE = """
    INSERT INTO files (owner_id, path, content) VALUES ($1, $2, $3)
    ON CONFLICT (owner_id, path) DO UPDATE SET content = EXCLUDED.content, changed_at = now()
"""
ENTRIES = """
    SELECT path, octet_length(content) AS size FROM files WHERE owner_id = $1 ORDER BY path COLLATE "C"
"""
PAGE = """
    SELECT path, octet_length(content) AS size FROM files WHERE owner_id = $1 AND path COLLATE "C" > $2
    ORDER BY path COLLATE "C" LIMIT $3
"""
PATHS_WITH = """
    SELECT path FROM files WHERE owner_id = $1 AND starts_with(path, $2) ORDER BY path COLLATE "C" LIMIT $3
"""
OTHERS = """
    SELECT count(*) AS many, coalesce(sum(octet_length(content)), 0) AS bytes,
           EXISTS (SELECT FROM users WHERE id = $1) AS known,
           min(path) FILTER (WHERE path = ANY ($3::text[]) OR starts_with(path, $2 || '/')) AS in_the_way
    FROM files WHERE owner_id = $1 AND path <> $2
"""


MOVE = """
    UPDATE files SET owner_id = $2, path = moves.after
    FROM unnest($3::text[], $4::text[]) AS moves (before, after) WHERE owner_id = $1 AND path = moves.before
"""


class WorkspaceEntry(WireStruct, frozen=True, kw_only=True):
    """A file without its content. `size` is bytes."""

    path: str
    size: int


class WorkspaceLimits(msgspec.Struct, frozen=True):
    """The limits of one owner's files together."""

    files: int
    total_bytes: int


def limits_of(*, known: bool) -> WorkspaceLimits:
    """The limits of a user, whom the server knows, or of a guest's thread."""
    if known:
        return WorkspaceLimits(MAX_FILES, MAX_TOTAL_BYTES)
    return WorkspaceLimits(min(MAX_FILES, MAX_GUEST_FILES), min(MAX_TOTAL_BYTES, MAX_GUEST_BYTES))


async def entries(driver: Driver, owner_id: UUID) -> list[WorkspaceEntry]:
    """All files of the owner, by path."""
    return [WorkspaceEntry(path=row["path"], size=row["size"]) for row in await driver.fetch(ENTRIES, owner_id)]


async def page(driver: Driver, owner_id: UUID, *, after: str, limit: int) -> list[WorkspaceEntry]:
    """The owner's next files by path, after this path."""
    rows = await driver.fetch(PAGE, owner_id, after, limit)
    return [WorkspaceEntry(path=row["path"], size=row["size"]) for row in rows]


async def paths_with(driver: Driver, owner_id: UUID, beginning: str, limit: int) -> list[str]:
    """The owner's first paths that begin so."""
    return [row["path"] for row in await driver.fetch(PATHS_WITH, owner_id, beginning, limit)]


async def read(driver: Driver, owner_id: UUID, path: str) -> bytes:
    """The content of the file. Raises `NotFound`."""
    content: bytes | None = await driver.fetchval(
        "SELECT content FROM files WHERE owner_id = $1 AND path = $2", owner_id, path
    )
    if content is None:
        raise NotFound(f"There is no file {path}.")
    return content


async def contents(driver: Driver, owner_id: UUID, paths: Sequence[str]) -> dict[str, bytes]:
    """The contents of these files, by path. Missing files are left out."""
    query = "SELECT path, content FROM files WHERE owner_id = $1 AND path = ANY ($2::text[])"
    return {row["path"]: row["content"] for row in await driver.fetch(query, owner_id, paths)}


@retried
async def write(db: Database, owner_id: UUID, path: str, content: bytes) -> None:
    """Create the file, or replace its content.

    Raises `PayloadTooLarge` if it or all files together would be too large, and `Conflict` if a file and a folder would
    have the same name.
    """
    async with workspace_owners.changing(db, owner_id) as driver:
        await _put(driver, owner_id, path, content)


@retried
async def change(db: Database, owner_id: UUID, path: str, edit: Callable[[bytes], bytes]) -> None:
    """Edit the file, with exclusive access. Raises the errors of `read`, `write` and `edit`."""
    async with workspace_owners.changing(db, owner_id) as driver:
        await _put(driver, owner_id, path, edit(await read(driver, owner_id, path)))


async def _put(driver: Driver, owner_id: UUID, path: str, content: bytes) -> None:
    if len(content) > MAX_FILE_BYTES:
        raise PayloadTooLarge(f"A file has at most {MAX_FILE_BYTES:,} bytes; this would have {len(content):,}.")
    others = await driver.fetchrow(OTHERS, owner_id, path, list(folders(path)))
    assert others is not None
    if others["in_the_way"] is not None:
        raise Conflict(f"{path} can't be a file: {others['in_the_way']} is one.")
    limits = limits_of(known=others["known"])
    if others["many"] >= limits.files:
        raise PayloadTooLarge(f"There are at most {limits.files:,} files. Delete some first.")
    if others["bytes"] + len(content) > limits.total_bytes:
        raise PayloadTooLarge(f"All files together have at most {limits.total_bytes:,} bytes. Delete some first.")
    await driver.execute(WRITE, owner_id, path, content)


def folders(path: str) -> Iterator[str]:
    """The folders of the path, the outermost first."""
    steps = path.split("/")
    return ("/".join(steps[:depth]) for depth in range(1, len(steps)))


@retried
async def delete(db: Database, owner_id: UUID, path: str) -> None:
    """Delete the file. Raises `NotFound`."""
    async with workspace_owners.changing(db, owner_id) as driver:
        status = await driver.execute("DELETE FROM files WHERE owner_id = $1 AND path = $2", owner_id, path)
        if status == "DELETE 0":
            raise NotFound(f"There is no file {path}.")


class WorkspaceMove(msgspec.Struct, frozen=True):
    """A file's path before and after a move."""

    before: str
    after: str


async def move_all(driver: Driver, before: UUID, after: UUID, folder: str) -> None:
    """Move all files to another owner. A file whose path is taken there is moved into this folder.

    The limits of one owner do not apply to moved files.
    """
    for owner_id in sorted((before, after)):
        await workspace_owners.lock(driver, owner_id)
    taken = {entry.path for entry in await entries(driver, after)}
    moves = moved([entry.path for entry in await entries(driver, before)], taken, folder)
    await driver.execute(
        MOVE,
        before,
        after,
        [move.before for move in moves],
        [move.after for move in moves],
    )


def moved(paths: Sequence[str], taken: set[str], folder: str) -> list[WorkspaceMove]:
    """The new path of each file among the `taken` ones. No file may have the path of another file or of a folder."""
    existing = _Names(taken)
    all_names = _Names({*taken, *paths})
    moves = []
    for path in paths:
        after = path
        if existing.taken(path):
            after = all_names.free(f"{folder}/{path}")
            all_names.add(after)
        moves.append(WorkspaceMove(path, after))
    return moves


class _Names:
    def __init__(self, paths: set[str]) -> None:
        self._files = set(paths)
        self._folders = {folder for path in paths for folder in folders(path)}

    def add(self, path: str) -> None:
        self._files.add(path)
        self._folders.update(folders(path))

    def taken(self, path: str) -> bool:
        """Whether the path is taken by a file or folder, or needs a folder where a file is."""
        return path in self._files or path in self._folders or not self._files.isdisjoint(folders(path))

    def free(self, path: str) -> str:
        """The path, with as many underscores after its first folder as it needs to be free."""
        folder, _, rest = path.partition("/")
        while self.taken(f"{folder}/{rest}"):
            folder += "_"
        return f"{folder}/{rest}"
