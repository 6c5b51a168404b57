"""The embedded Postgres under faults: real processes are killed."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from khala.store.embedded import EmbeddedPostgres, EmbeddedPostgresError, locks
from khala.store.embedded.layout import NOBODY, ClusterLayout, lay_out, make_private
from tests.support.embedded import (
    ORPHAN,
    ROOT,
    Member,
    as_root,
    ended,
    eventually,
    on_linux,
    postmaster,
    running,
    serving,
    sql,
    supervisor,
)


def test_a_killed_last_user_leaves_no_server_behind(
    home: Path, layout: ClusterLayout, members: Callable[..., Member]
) -> None:
    pair = [members(home), members(home)]
    for member in pair:
        member.read_answer()
    for member in pair:
        member.kill()
    eventually(lambda: ended(layout), seconds=5)
    assert "database system is shut down" in (layout.log / "postgres.log").read_text()


@pytest.mark.parametrize("left", ["", "12", "reused pid"])
def test_a_wrong_postmaster_pid_stops_no_process(home: Path, layout: ClusterLayout, left: str) -> None:
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


def test_a_killed_postmaster_comes_back_with_its_data(server: EmbeddedPostgres, layout: ClusterLayout) -> None:
    sql(server.url, "CREATE TABLE kept AS SELECT 7 AS n", "SELECT 1")
    before, parent = postmaster(layout), supervisor(layout)
    before.kill()
    server.ensure()
    assert sql(server.url, "SELECT n FROM kept") == 7
    assert postmaster(layout) != before
    assert supervisor(layout) == parent


def test_a_killed_postmaster_is_noticed_by_its_idle_session(server: EmbeddedPostgres, layout: ClusterLayout) -> None:
    server.check()
    before = postmaster(layout)
    server.check()
    assert postmaster(layout) == before
    before.kill()

    def is_back() -> bool:
        server.check()
        return serving(server.url) and postmaster(layout) != before

    eventually(is_back, seconds=8)


@pytest.mark.parametrize("postmaster_too", [False, True])
def test_a_killed_supervisor_ends_its_server_and_ensure_restarts_both(
    server: EmbeddedPostgres, layout: ClusterLayout, postmaster_too: bool
) -> None:
    sql(server.url, "CREATE TABLE kept AS SELECT 7 AS n", "SELECT 1")
    before, parent = postmaster(layout), supervisor(layout)
    parent.kill()
    if postmaster_too:
        before.kill()
    eventually(lambda: not locks.held(layout.supervisor_lock))
    server.ensure()
    assert sql(server.url, "SELECT n FROM kept") == 7
    assert not before.is_running() or before.status() == psutil.STATUS_ZOMBIE
    assert supervisor(layout) != parent


def test_a_server_whose_supervisor_and_users_are_all_killed_ends(
    home: Path, layout: ClusterLayout, members: Callable[..., Member]
) -> None:
    member = members(home)
    member.read_answer()
    supervisor(layout).kill()
    member.kill()
    eventually(lambda: ended(layout), seconds=5)


@as_root
@on_linux
def test_a_server_that_outlived_its_supervisor_is_ended_by_the_next_start(home: Path, layout: ClusterLayout) -> None:
    command = [sys.executable, "-c", ORPHAN, str(home)]
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
    completed = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    orphan = psutil.Process(int(completed.stdout))
    server = EmbeddedPostgres.start(home)
    assert serving(server.url)
    assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE
    server.stop()


def test_a_killed_initdb_leaves_no_half_database(bare: Path, members: Callable[..., Member]) -> None:
    member, layout = members(bare), lay_out(bare)
    eventually(lambda: any(layout.base.glob("draft-*/base/1")))
    assert not layout.data.exists()
    for process in running(bare):
        with contextlib.suppress(psutil.NoSuchProcess):  # ending one process may end another
            process.kill()
    member.kill()
    eventually(lambda: ended(layout))
    assert not layout.data.exists()
    server = EmbeddedPostgres.start(bare)
    assert serving(server.url)
    assert not list(layout.base.glob("draft-*"))
    server.stop()


def test_a_deleted_home_ends_its_server(home: Path, layout: ClusterLayout, members: Callable[..., Member]) -> None:
    member = members(home)
    member.read_answer()
    processes = [supervisor(layout), postmaster(layout)]
    shutil.rmtree(home, ignore_errors=True)
    eventually(lambda: not any(process.is_running() for process in processes))
    for left in (home, layout.socket_directory):
        shutil.rmtree(left, ignore_errors=True)


def test_a_start_that_fails_says_what_postgres_said(home: Path, layout: ClusterLayout) -> None:
    (layout.data / "PG_VERSION").write_text("9\n")
    with pytest.raises(EmbeddedPostgresError, match="not compatible with this version"):
        EmbeddedPostgres.start(home)
    assert ended(layout)
