"""The layout of an embedded Postgres: its files, its user and its socket."""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

NOBODY = 65534
SOCKET_NAME = ".s.PGSQL.5432"
MAX_SOCKET_PATH_BYTES = 103
"""`sun_path` has 104 bytes on macOS and 108 on Linux, including the final NUL."""


class EmbeddedPostgresError(RuntimeError):
    """The embedded Postgres can't be used. The message has the reason and the remedy."""


class ClusterLayout(NamedTuple):
    """The paths of one server. `uid` is the server's user, which is never root."""

    base: Path
    uid: int
    gid: int
    socket_directory: Path

    @property
    def data(self) -> Path:
        """The data directory, which the server's user owns."""
        return self.base / "data"

    @property
    def log(self) -> Path:
        """The directory of the log that server and supervisor share."""
        return self.base / "log"

    @property
    def users_lock(self) -> Path:
        """The lock that all processes share while they need the server."""
        return self.base / "users.lock"

    @property
    def supervisor_lock(self) -> Path:
        """A lock that the supervisor holds. Its file has the token that the server reports."""
        return self.base / "keeper.lock"

    @property
    def server_lock(self) -> Path:
        """A lock that the postmaster and its children hold by inheritance. Its file has the postmaster's pid."""
        return self.base / "server.lock"

    @property
    def socket(self) -> Path:
        """The server's unix socket. It listens on no port."""
        return self.socket_directory / SOCKET_NAME

    @property
    def url(self) -> str:
        """The URL of Khala's database in this server, for libpq and asyncpg."""
        return f"postgresql://khala@/khala?host={quote(str(self.socket_directory))}"


def has_cluster(home: Path) -> bool:
    """Whether `home` has the data of a server. Creates nothing."""
    return (home / "postgres" / "data").is_dir()


def lay_out(home: Path) -> ClusterLayout:
    """The layout below `home`, independent of the path by which a process refers to it. Creates `home/postgres`."""
    base = home.resolve() / "postgres"
    # Other users may traverse it, for a server that runs as one. Each file inside has its own permissions.
    base.mkdir(mode=0o711, parents=True, exist_ok=True)
    uid, gid = _owner(base / "data")
    return ClusterLayout(base, uid, gid, _socket_directory(base, uid))


def _owner(data: Path) -> tuple[int, int]:
    """The server's user and group. Postgres refuses root, so root runs it as the data's owner or as nobody."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    try:
        found = data.stat()
    except FileNotFoundError:
        return NOBODY, NOBODY
    return (found.st_uid, found.st_gid) if found.st_uid != 0 else (NOBODY, NOBODY)


def _socket_directory(base: Path, uid: int) -> Path:
    """The socket's directory: beside the data, or elsewhere if that path is too long or closed to the server.

    XDG_RUNTIME_DIR is not used: it is removed when the user logs out, and differs between a login and a service.
    """
    inside = base / "run"
    if uid != NOBODY and len(os.fsencode(inside / SOCKET_NAME)) <= MAX_SOCKET_PATH_BYTES:
        return inside
    identity = base.stat()
    name = f"khala-{identity.st_dev:x}-{identity.st_ino:x}"
    if uid == NOBODY and os.access("/run", os.W_OK):
        return Path("/run", name)
    # Not TMPDIR, which may differ between processes. `make_private` checks that the directory is the server's.
    return Path("/tmp", f"{name}-{uid}")  # noqa: S108


def make_private(directory: Path, uid: int, gid: int) -> None:
    """Create a directory that is private to the server, or check that it is. Raises EmbeddedPostgresError."""
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (uid, os.geteuid()):
        raise EmbeddedPostgresError(
            f"{directory} must be a directory of user {uid}, but somebody else created it: remove it"
        )
    directory.chmod(0o700)
    if found.st_uid != uid:
        os.chown(directory, uid, gid, follow_symlinks=False)
