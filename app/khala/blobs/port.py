"""The port of blob stores: objects, named by the SHA-256 of their content."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol


class BlobStore(Protocol):
    """Stores objects. Every method may raise `khala.domain.errors.Unavailable`."""

    local: bool
    """Whether the objects are on a disk of this machine, which may be full."""

    async def put(self, key: str, source: Path) -> None:
        """Store this file's bytes under the key (hex digits of their SHA-256), durably and atomically.

        Storing an existing object again is harmless. The file stays in place.
        """
        ...

    def read(self, key: str, start: int, end: int) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The bytes from `start` up to `end` (exclusive), in chunks of 64 KiB or so. Raises `BlobNotFound`."""
        ...

    async def delete(self, key: str) -> None:
        """Delete the object, if it exists."""
        ...

    async def signed_url(self, key: str, *, media_type: str, disposition: str, seconds: int) -> str | None:
        """A URL from which anyone may read the object for `seconds`; None if the store can't sign URLs.

        Its response has this `Content-Type` and `Content-Disposition`.
        """
        ...

    def list_older(self, seconds: float) -> AsyncIterator[tuple[str, int]]:
        """The keys and sizes of objects that were written at least so many seconds ago, to find unreferenced ones."""
        ...

    async def register_owner(self, name: str) -> str:
        """Make `name` the owner of this store unless there is an owner. Returns the owner."""
        ...

    async def check(self) -> None:
        """Raise `Unavailable` unless objects can be stored and read."""
        ...

    async def aclose(self) -> None:
        """Close every connection."""
        ...
