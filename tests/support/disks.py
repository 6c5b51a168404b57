"""Small disks that a test fills up: real file systems, which only root can mount."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CHUNK_OF_ZEROS = bytes(64 * 1024)
mounts = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root on Linux can mount a small disk"
)


class Disk:
    """A mounted disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Fill the disk."""
        with contextlib.suppress(OSError), self._filler.open("wb", buffering=0) as file:
            while True:
                file.write(CHUNK_OF_ZEROS)

    def free(self) -> None:
        """Delete the file that fills the disk."""
        self._filler.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(path: Path, *, mebibytes: int) -> Iterator[Disk]:
    """A disk of this size, mounted at the path for as long as this is open."""
    path.mkdir(parents=True, exist_ok=True)
    options = f"size={mebibytes}m,mode=755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "khala-test", str(path)], check=True)
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
