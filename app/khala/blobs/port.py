"""The one port to where blobs' bytes are kept: objects named by the SHA-256 of their content."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol


class BlobStore(Protocol):
    """Keeps objects. Raises `khala.domain.errors.Unavailable` where it is out of reach."""

    local: bool
    """Whether the objects lie on a disk of this machine, which may be full."""

    async def put(self, key: str, source: Path) -> None:
        """Keep this file's bytes under the key (hex digits of their SHA-256), durably and all or nothing.

        To keep again what is there is harmless. The file stays where it is.
        """
        ...

    def read(self, key: str, start: int, end: int) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The bytes from `start` up to `end` (exclusive), in chunks of 64 KiB or so. Raises `BlobNotFound`."""
        ...

    async def delete(self, key: str) -> None:
        """Forget the object; one that is not there is forgotten already."""
        ...

    async def signed_url(self, key: str, *, media_type: str, disposition: str, seconds: int) -> str | None:
        """An address from which anybody may read the object for so long; None where the store can't sign one.

        The answer there has this `Content-Type` and `Content-Disposition`.
        """
        ...

    def older(self, seconds: float) -> AsyncIterator[tuple[str, int]]:
        """The keys and sizes of objects that were last written so long ago, to find those that nothing refers to."""
        ...

    async def owner(self, name: str) -> str:
        """Whose store this is: whoever asked first, under this name."""
        ...

    async def check(self) -> None:
        """Raise `Unavailable` unless objects can be kept and read."""
        ...

    async def aclose(self) -> None:
        """Close every connection."""
        ...
