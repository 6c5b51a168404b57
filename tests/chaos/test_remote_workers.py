"""Remote workers and servers that are killed at random lose and double no text."""

from pathlib import Path

from tests.chaos.remote_workers import run


async def test_killed_workers_and_servers_lose_and_double_no_text(database_url: str, tmp_path: Path) -> None:
    problems = await run(database_url, tmp_path, seed=7, kills=4, runs=3, count=150)
    assert problems == [], problems
