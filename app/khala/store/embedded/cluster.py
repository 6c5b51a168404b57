"""Creates the data directory, and starts Postgres on it."""

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from khala.store.embedded import locks, sizing
from khala.store.embedded.binaries import major_version
from khala.store.embedded.layout import ClusterLayout

SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "fsync": "on",
    # The first change of a page after a checkpoint writes the whole page to the WAL. They are most of it where rows are
    # written to scattered pages.
    "wal_compression": "on",
    "jit": "off",
    # Parallel workers need more of /dev/shm than a container has, and a server of this size has no spare cores.
    "max_parallel_workers_per_gather": "0",
    "max_parallel_maintenance_workers": "0",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
    "log_checkpoints": "off",
    "log_line_prefix": "%m [%p] ",
    "logging_collector": "off",
}
"""Settings of the server, which override its configuration files. Those of memory: `khala.store.embedded.sizing`."""

ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
LINUX = os.uname().sysname == "Linux"
PR_SET_PDEATHSIG = 1
CLONE_NEWUSER = 0x10000000


def create(layout: ClusterLayout, binaries: Path) -> None:
    """Create the data directory if there is none, atomically. The caller holds the supervisor's lock."""
    for left in layout.base.glob("draft-*"):
        shutil.rmtree(left, ignore_errors=True)
    if (layout.data / "PG_VERSION").exists():
        return
    draft = layout.base / f"draft-{os.getpid()}"
    draft.mkdir(mode=0o700)
    os.chown(draft, layout.uid, layout.gid)
    _spawn(_initdb(binaries, draft), layout, draft, before=_initdb_setup(), inherit=()).wait()
    if (draft / "PG_VERSION").exists() and (draft / "global" / "pg_control").exists():
        draft.rename(layout.data)
        _fsync(layout.base)


def launch(
    layout: ClusterLayout, binaries: Path, lock: int, token: str, parameters: Mapping[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    """Start a postmaster that inherits `lock`, reports `token` to clients, and shuts down when this process dies.

    `parameters` replace the settings that `sizing` chooses for this machine.
    """
    settings = SETTINGS | sizing.for_this_machine(layout.data) | dict(parameters or {})
    settings |= {"unix_socket_directories": f'"{layout.socket_directory}"', "khala.keeper": token}
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    command = [str(binaries / "postgres"), "-D", _reach(layout.data), *options]
    return _spawn(command, layout, layout.data, before=_postmaster_setup(lock), inherit=(lock,))


def serves(pid: int, layout: ClusterLayout) -> bool:
    """Whether process `pid` is a Postgres on this data directory."""
    if LINUX:
        try:
            return Path(f"/proc/{pid}/cwd").samefile(layout.data)
        except OSError:
            return False
    command = ["ps", "-o", "comm=", "-p", str(pid)]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603
    return output.strip().endswith("postgres")


def remove_stale_pid_files(layout: ClusterLayout) -> None:
    """Remove the pid files of a killed server: truncated, or with a reused pid, they would stop the next one.

    The caller holds the server's lock, so only a manually started server can still run here. Its files stay.
    """
    for path in (layout.data / "postmaster.pid", layout.socket.with_name(f"{layout.socket.name}.lock")):
        first = locks.read(path).partition("\n")[0].strip()
        if not (first.isdecimal() and serves(int(first), layout)):
            path.unlink(missing_ok=True)


def _initdb(binaries: Path, draft: Path) -> list[str]:
    builtin = major_version(binaries) >= 17
    locale = ["--locale-provider=builtin", "--locale=C.UTF-8"] if builtin else ["--locale=C"]
    return [
        str(binaries / "initdb"),
        *("-D", _reach(draft), "-U", "khala", "--auth=trust", "--encoding=UTF8", "--no-instructions"),
        *locale,
    ]


def _reach(directory: Path) -> str:
    """The path by which the server opens its directory, which is also its working directory.

    The server's user may not be able to traverse the path to it, if the home is below a private directory of root. So
    root enters the directory before it becomes that user, and this link works in every process of the server.
    """
    link = Path("/proc/self/cwd")
    return str(link if os.geteuid() == 0 and link.exists() else directory)


def _spawn(
    command: list[str], layout: ClusterLayout, directory: Path, *, before: Callable[[], None], inherit: tuple[int, ...]
) -> "subprocess.Popen[bytes]":
    root = os.geteuid() == 0
    return subprocess.Popen(  # noqa: S603  # our own programs and settings
        command,
        cwd=directory,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        pass_fds=inherit,
        user=layout.uid if root else None,
        group=layout.gid if root else None,
        extra_groups=[] if root else None,
        # Safe here: the supervisor, the only caller, has one thread.
        preexec_fn=before,
    )


def _postmaster_setup(lock: int) -> Callable[[], None]:
    follow = _die_with(os.getpid(), signal.SIGINT)

    def setup() -> None:
        follow()
        locks.write(lock, str(os.getpid()))

    return setup


def _initdb_setup() -> Callable[[], None]:
    follow = _die_with(os.getpid(), signal.SIGKILL)

    def setup() -> None:
        follow()
        _become_named_user()

    return setup


def _die_with(parent: int, how: signal.Signals) -> Callable[[], None]:
    """Have the kernel send the signal `how` to this process when `parent` dies. Elsewhere the next start sends it."""
    if not LINUX:
        return lambda: None
    libc = ctypes.CDLL(None)

    def follow() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(how), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return follow


def _become_named_user() -> None:
    """Become a named user in a namespace: initdb requires a user name, which a container's `--user 12345` lacks.

    If the system forbids that, initdb reports the missing name.
    """
    uid, gid = os.geteuid(), os.getegid()
    named = [user.pw_uid for user in pwd.getpwall() if user.pw_uid != 0]
    if not LINUX or not named or _has_name(uid):
        return
    if ctypes.CDLL(None).unshare(CLONE_NEWUSER) == 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{named[0]} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _fsync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
