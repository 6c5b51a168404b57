"""Starting, sharing and stopping the embedded Postgres."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from khala.store.embedded import EmbeddedPostgres, sizing
from khala.store.embedded.layout import ClusterLayout, lay_out
from tests.support.embedded import (
    Member,
    ended,
    eventually,
    postmaster,
    serving,
    sql,
)


def test_it_starts_below_a_directory_that_the_servers_user_may_not_enter(bare: Path) -> None:
    server = EmbeddedPostgres.start(bare)
    assert sql(server.url, "SELECT current_setting('server_version')") == server.version
    assert server.version.split(".")[0].isdecimal()
    assert bare.parent.stat().st_mode & 0o777 == 0o700
    assert bare.stat().st_uid == os.geteuid()
    server.stop()
    assert ended(lay_out(bare))


def test_it_supports_all_database_features_that_khala_uses(server: EmbeddedPostgres) -> None:
    near = sql(server.url, "CREATE EXTENSION vector", "CREATE EXTENSION pg_trgm", "SELECT '[1,2]'::vector <-> '[1,2]'")
    assert near == 0
    sql(server.url, "CREATE TABLE kept (n int)", "INSERT INTO kept VALUES (7)", "CHECKPOINT")
    sql(server.url, "CREATE DATABASE sibling TEMPLATE template0")
    assert sql(server.url.replace("/khala?", "/sibling?"), "SELECT current_database()") == "sibling"
    settings = {name: sql(server.url, f"SHOW {name}") for name in ("fsync", "listen_addresses", "server_encoding")}
    assert settings == {"fsync": "on", "listen_addresses": "", "server_encoding": "UTF8"}


def test_memory_and_wal_are_sized_by_the_machine_and_settings_replace_that_also_after_a_crash(
    home: Path, layout: ClusterLayout
) -> None:
    chosen = {"shared_buffers": "48MB", "max_wal_size": "96MB"}
    server = EmbeddedPostgres.start(home, chosen)
    try:
        names = list(sizing.for_this_machine(layout.base))
        expected = sizing.for_this_machine(layout.base) | chosen
        in_bytes = "SELECT pg_size_bytes('{}') = pg_size_bytes(current_setting('{}'))"
        for name in names:
            assert sql(server.url, in_bytes.format(expected[name], name)), name
        before = postmaster(layout)
        before.kill()
        eventually(lambda: serving(server.url) and postmaster(layout) != before)
        assert sql(server.url, "SHOW shared_buffers") == "48MB"
    finally:
        server.stop()


def test_a_killed_backend_costs_no_data(server: EmbeddedPostgres, layout: ClusterLayout) -> None:
    sql(server.url, "CREATE TABLE kept AS SELECT 7 AS n", "SELECT 1")
    before = postmaster(layout)
    writer = next(child for child in before.children() if "background writer" in _command(child))
    writer.kill()
    eventually(lambda: not writer.is_running() or writer.status() == psutil.STATUS_ZOMBIE)
    eventually(lambda: serving(server.url))
    assert sql(server.url, "SELECT n FROM kept") == 7
    assert postmaster(layout) == before


def _command(process: psutil.Process) -> str:
    """The process's command line; empty if it has ended, as workers of autovacuum do at any time."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def test_the_second_start_is_fast_and_keeps_the_data(home: Path, layout: ClusterLayout) -> None:
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


def test_processes_that_start_at_once_share_a_server_and_the_last_one_stops_it(
    bare: Path, members: Callable[..., Member]
) -> None:
    pair = [members(bare), members(bare)]
    layout = lay_out(bare)
    urls = {member.read_answer()["url"] for member in pair}
    assert len(urls) == 1
    shared = postmaster(layout)
    assert pair[0].call("stop") == {"did": "stop"}
    pair[0].kill()
    assert sql(urls.pop(), "SELECT true")
    pair[1].call("ensure")
    assert postmaster(layout) == shared
    pair[1].call("stop")
    assert ended(layout)
