"""Where an embedded Postgres lives: its files, the user it runs as, and its socket."""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

NOBODY = 65534
SOCKET_NAME = ".s.PGSQL.5432"
MAX_SOCKET_PATH_BYTES = 103
"""Bytes: `sun_path` holds 104 on macOS, 108 on Linux, with the closing NUL."""


class EmbeddedPostgresError(RuntimeError):
    """The embedded Postgres can't be used; the message says why and what to do."""


class ClusterLayout(NamedTuple):
    """The places of one server. `uid` is the server's user, which as root is another than ours."""

    base: Path
    uid: int
    gid: int
    socket_directory: Path

    @property
    def data(self) -> Path:
        """The data directory, which is the server's user's own."""
        return self.base / "data"

    @property
    def log(self) -> Path:
        """The directory of the server's and keeper's common log."""
        return self.base / "log"

    @property
    def users_lock(self) -> Path:
        """Shared by every process that needs the server."""
        return self.base / "users.lock"

    @property
    def keeper_lock(self) -> Path:
        """Held by the keeper; says the token that its server answers with."""
        return self.base / "keeper.lock"

    @property
    def server_lock(self) -> Path:
        """Held by the postmaster and every child of it, as they inherit it; says the postmaster's pid."""
        return self.base / "server.lock"

    @property
    def socket(self) -> Path:
        """The server's socket; there is no port."""
        return self.socket_directory / SOCKET_NAME

    @property
    def url(self) -> str:
        """The address of our database in that server, as libpq and asyncpg read it."""
        return f"postgresql://khala@/khala?host={quote(str(self.socket_directory))}"


def lay_out(home: Path) -> ClusterLayout:
    """The layout below `home`, the same by whatever path a process names it. Makes `home/postgres`."""
    base = home.resolve() / "postgres"
    # Others may pass through, for a server that runs as another user; what is inside is closed to them one by one.
    base.mkdir(mode=0o711, parents=True, exist_ok=True)
    uid, gid = _owner(base / "data")
    return ClusterLayout(base, uid, gid, _socket_directory(base, uid))


def _owner(data: Path) -> tuple[int, int]:
    """Postgres refuses to run as root: root runs it as whoever owns the data, or nobody."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    try:
        found = data.stat()
    except FileNotFoundError:
        return NOBODY, NOBODY
    return (found.st_uid, found.st_gid) if found.st_uid != 0 else (NOBODY, NOBODY)


def _socket_directory(base: Path, uid: int) -> Path:
    """Beside the data, where all who share it find it; elsewhere where that path is too long or closed to the server.

    XDG_RUNTIME_DIR won't do: it goes when the user logs out, and differs between a login and a service.
    """
    inside = base / "run"
    if uid != NOBODY and len(os.fsencode(inside / SOCKET_NAME)) <= MAX_SOCKET_PATH_BYTES:
        return inside
    identity = base.stat()
    name = f"khala-{identity.st_dev:x}-{identity.st_ino:x}"
    if uid == NOBODY and os.access("/run", os.W_OK):
        return Path("/run", name)
    # Not TMPDIR, which may differ from process to process; `make_private` makes sure that it is the server's.
    return Path("/tmp", f"{name}-{uid}")  # noqa: S108


def make_private(directory: Path, uid: int, gid: int) -> None:
    """Make a directory that is the server's alone, or make sure that it is. Raises EmbeddedPostgresError."""
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (uid, os.geteuid()):
        raise EmbeddedPostgresError(f"{directory} should be a directory of user {uid}, but somebody else made it")
    directory.chmod(0o700)
    if found.st_uid != uid:
        os.chown(directory, uid, gid, follow_symlinks=False)
