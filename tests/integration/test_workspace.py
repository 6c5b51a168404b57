"""The workspace: files are private and limited, and every line of them can be found."""

import asyncio
import re
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from khala.domain import ids
from khala.domain.tools import ToolActor
from khala.store.postgres.database import Database
from khala.store.tools import todos, workspace_files
from khala.tools import file_search
from khala.tools.directory_tools import GlobFiles, ListDirectory
from khala.tools.file_search import GrepFiles
from khala.tools.port import Tool
from khala.tools.todo_tools import TodoAdd, TodoComplete, TodoList
from khala.tools.workspace_tools import DeleteFile, EditFile, ReadFile, WriteFile
from tests.support.people import new_user
from tests.support.store import new_thread
from tests.support.tool_calls import call, guest, user


async def new_actor(db: Database) -> ToolActor:
    return user(await new_user(db))


async def write(db: Database, actor: ToolActor, path: str, content: str) -> None:
    result = await call(WriteFile(db), actor, path=path, content=content)
    assert result.ok, result.text


async def read(db: Database, actor: ToolActor, path: str) -> str:
    result = await call(ReadFile(db), actor, path=path)
    assert result.ok, result.text
    return result.text


async def paths_of(db: Database, actor: ToolActor) -> list[str]:
    async with db.driver() as driver:
        return [entry.path for entry in await workspace_files.entries(driver, actor.owner_id)]


async def test_a_written_file_is_read_unchanged_and_writing_is_idempotent(db: Database) -> None:
    actor = await new_actor(db)
    for _ in range(2):
        await write(db, actor, "notes//./plan.md", "En taro\nAdun\n")
    assert await paths_of(db, actor) == ["notes/plan.md"]
    assert await read(db, actor, "notes/plan.md") == "En taro\nAdun\n"
    await write(db, actor, "cafe\u0301.txt", "composed")
    assert await read(db, actor, "caf\u00e9.txt") == "composed"


@pytest.mark.parametrize(
    "path",
    ["../x", "a/../../x", "/etc/passwd", "..", ".", "a/..", "a\0b", "a\nb", "\ud800", "x" * 513, "a/" * 16 + "b", "//"],
)
async def test_an_invalid_or_escaping_path_is_refused(db: Database, path: str) -> None:
    actor = await new_actor(db)
    args: dict[Tool, dict[str, Any]] = {
        ReadFile(db): {},
        WriteFile(db): {"content": "x"},
        DeleteFile(db): {},
        EditFile(db): {"old": "a", "new": "b"},
    }
    for tool, more in args.items():
        result = await call(tool, actor, path=path, **more)
        assert not result.ok
        assert result.result.code in ("bad_arguments", "not_found")
    assert await paths_of(db, actor) == []


async def test_a_path_cannot_be_a_file_and_a_folder(db: Database) -> None:
    actor = await new_actor(db)
    await write(db, actor, "a/b", "x")
    for path in ("a", "a/b/c"):
        result = await call(WriteFile(db), actor, path=path, content="x")
        assert (result.ok, "can't be a file" in result.text) == (False, True)
    await write(db, actor, "a%", "x")
    await write(db, actor, "a_/c", "x")
    assert await paths_of(db, actor) == ["a%", "a/b", "a_/c"]


async def test_users_do_not_see_files_and_todos_of_others(db: Database) -> None:
    one, other = await new_actor(db), await new_actor(db)
    visitor, next_door = guest(await new_thread(db)), guest(await new_thread(db))
    for actor in (one, other, visitor, next_door):
        await write(db, actor, "secret.txt", f"of {actor.owner_id}")
        await call(TodoAdd(db), actor, text=f"for {actor.owner_id}", key="the same")
    for actor in (one, other, visitor, next_door):
        assert await read(db, actor, "secret.txt") == f"of {actor.owner_id}"
        found = await call(GrepFiles(db), actor, pattern="of ")
        assert found.text == f"[1 matching line]\nsecret.txt:1:of {actor.owner_id}"
        listed = (await call(TodoList(db), actor)).json["todos"]
        assert [(todo["id"], todo["text"]) for todo in listed] == [(1, f"for {actor.owner_id}")]
    assert (await call(DeleteFile(db), one, path="secret.txt")).ok
    assert await read(db, other, "secret.txt") == f"of {other.owner_id}"


async def test_a_deleted_owner_cannot_write(db: Database) -> None:
    result = await call(WriteFile(db), user(ids.new()), path="a", content="x")
    assert (result.ok, result.result.code) == (False, "not_found")


async def test_a_file_is_read_in_pages_of_lines_with_the_total(db: Database) -> None:
    actor = await new_actor(db)
    await write(db, actor, "long.txt", "".join(f"line {number}\n" for number in range(1, 5001)))
    first = await call(ReadFile(db), actor, path="long.txt")
    assert first.text.startswith("[Lines 1 to 2000 of 5000; continue with from=2001]\nline 1\n")
    end: dict[str, Any] = {"from": 4999, "lines": 10}
    last = await call(ReadFile(db), actor, path="long.txt", **end)
    assert last.text == "[Lines 4999 to 5000 of 5000]\nline 4999\nline 5000"
    beyond: dict[str, Any] = {"from": 5001}
    assert "there is no line 5001" in (await call(ReadFile(db), actor, path="long.txt", **beyond)).text
    await write(db, actor, "empty.txt", "")
    assert await read(db, actor, "empty.txt") == ""


async def test_a_binary_file_is_reported_as_not_text(db: Database) -> None:
    actor = await new_actor(db)
    await workspace_files.write(db, actor.owner_id, "image.png", b"\x89PNG\xff\x00")
    either: dict[Tool, dict[str, Any]] = {ReadFile(db): {}, EditFile(db): {"old": "P", "new": "Q"}}
    for tool, args in either.items():
        result = await call(tool, actor, path="image.png", **args)
        assert (result.ok, result.text) == (False, "image.png is not UTF-8 text, but binary data of 6 bytes.")
    assert (await call(GrepFiles(db), actor, pattern="PNG")).text == "[0 matching lines; 1 binary file not searched]"


async def test_an_edit_needs_the_old_text_exactly_once_unless_all_are_replaced(db: Database) -> None:
    actor = await new_actor(db)
    await write(db, actor, "a.txt", "one two one")
    edit = EditFile(db)
    assert (await call(edit, actor, path="a.txt", old="three", new="x")).result.code == "not_found"
    assert "2 times" in (await call(edit, actor, path="a.txt", old="one", new="x")).text
    assert await read(db, actor, "a.txt") == "one two one"
    assert (await call(edit, actor, path="a.txt", old="two", new="2")).ok
    assert (
        await call(edit, actor, path="a.txt", old="one", new="1", all=True)
    ).text == "Replaced 2 occurrences in a.txt."
    assert await read(db, actor, "a.txt") == "1 2 1"
    await write(db, actor, "a.txt", "x" * 100_000)
    assert (await call(edit, actor, path="a.txt", old="x", new="y" * 1000, all=True)).result.code == "too_large"


async def test_concurrent_edits_are_serialised(db: Database) -> None:
    actor = await new_actor(db)
    await write(db, actor, "a.txt", "".join(f"<{number}>" for number in range(30)))
    edits = (call(EditFile(db), actor, path="a.txt", old=f"<{number}>", new=f"[{number}]") for number in range(30))
    assert all(result.ok for result in await asyncio.gather(*edits))
    assert await read(db, actor, "a.txt") == "".join(f"[{number}]" for number in range(30))


async def test_the_size_of_a_file_is_limited(db: Database) -> None:
    actor = await new_actor(db)
    kibi = workspace_files.MAX_FILE_BYTES // 1024
    await write(db, actor, "a", "y" * kibi)
    assert (await call(EditFile(db), actor, path="a", old="y", new="x" * 1024, all=True)).ok
    await write(db, actor, "b", "y" * kibi + "x")
    result = await call(EditFile(db), actor, path="b", old="y", new="ä" * 512, all=True)
    assert (result.ok, result.result.code) == (False, "too_large")
    at_once = await call(WriteFile(db), actor, path="b", content="x" * workspace_files.MAX_FILE_BYTES)
    assert (at_once.ok, at_once.result.code) == (False, "too_large")


async def test_concurrent_writes_cannot_exceed_the_limits(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace_files, "MAX_FILES", 20)
    actor = await new_actor(db)
    calls = (call(WriteFile(db), actor, path=f"f{number}", content="x") for number in range(200))
    assert sum(result.ok for result in await asyncio.gather(*calls)) == 20
    assert len(await paths_of(db, actor)) == 20
    assert (await call(WriteFile(db), actor, path=(await paths_of(db, actor))[0], content="y")).ok


async def test_the_total_size_of_all_files_is_limited(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace_files, "MAX_TOTAL_BYTES", 1000)
    actor = await new_actor(db)
    calls = (call(WriteFile(db), actor, path=f"f{number}", content="x" * 90) for number in range(50))
    assert sum(result.ok for result in await asyncio.gather(*calls)) == 11
    assert "together" in (await call(WriteFile(db), actor, path="f0", content="x" * 200)).text


async def test_a_deleted_file_is_gone_and_deleting_waits_for_approval(db: Database) -> None:
    actor = await new_actor(db)
    await write(db, actor, "a/b.txt", "x")
    assert DeleteFile.spec.approval == "ask"
    assert (await call(DeleteFile(db), actor, path="a/b.txt")).ok
    for tool in (DeleteFile(db), ReadFile(db)):
        result = await call(tool, actor, path="a/b.txt")
        assert (result.result.code, result.text) == ("not_found", "There is no file a/b.txt.")


async def test_folders_are_listed_with_their_files_and_folders(db: Database) -> None:
    actor = await new_actor(db)
    assert (await call(ListDirectory(db), actor)).text == "The workspace is empty."
    for path in ("b.txt", "a/x.txt", "a/y/z.txt", "ab/c"):
        await write(db, actor, path, "xyz")
    assert (await call(ListDirectory(db), actor)).text == "a/\nab/\nb.txt  3"
    assert (await call(ListDirectory(db), actor, path="a")).text == "x.txt  3\ny/"
    assert (await call(ListDirectory(db), actor, path="b.txt")).result.code == "not_found"


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", "top.md"),
        ("**", "src/a.py src/deep/b.py src/deep/er/c.ts top.md"),
        ("**/*.py", "src/a.py src/deep/b.py"),
        ("src/*.py", "src/a.py"),
        ("src/**", "src/a.py src/deep/b.py src/deep/er/c.ts"),
        ("src/**/c.ts", "src/deep/er/c.ts"),
        ("src/?.py", "src/a.py"),
        ("**/[!a].{py,ts}", "src/deep/b.py src/deep/er/c.ts"),
        ("src/[a-z].py", "src/a.py"),
        ("src/deep", ""),
        ("*(a+)+$", ""),
        ("a{b", ""),
    ],
)
async def test_a_glob_finds_paths(db: Database, pattern: str, found: str) -> None:
    actor = await new_actor(db)
    for path in ("src/a.py", "src/deep/b.py", "src/deep/er/c.ts", "top.md"):
        await write(db, actor, path, "x")
    result = await call(GlobFiles(db), actor, pattern=pattern)
    assert result.text == (found.replace(" ", "\n") or "No file matches the pattern.")


async def every_line(db: Database, actor: ToolActor, pattern: str, **args: Any) -> list[str]:
    """The lines of all pages of a search, without the pages' heads."""
    lines: list[str] = []
    after: dict[str, Any] = {}
    for _ in range(100):
        result = await call(GrepFiles(db), actor, pattern=pattern, **args, **after)
        assert result.ok, result.text
        head, *page = result.text.split("\n")
        lines += page
        more = re.search(r"continue with after=(.*?:\d+)[;\]]", head)
        if more is None:
            return lines
        after = {"after": more[1]}
    raise AssertionError("the pages have no end")


LINE = st.text("ab \u00e9\r\x0b\u2028", max_size=6)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(
    texts=st.lists(st.lists(LINE, max_size=40).map("\n".join), min_size=1, max_size=4),
    pattern=st.sampled_from(["a", "^b", "a+b", "[ab]$", "é", "."]),
    page=st.integers(1, 7),
)
async def test_every_matching_line_is_on_some_page(db: Database, texts: list[str], pattern: str, page: int) -> None:
    actor = await new_actor(db)
    for number, text in enumerate(texts):
        await workspace_files.write(db, actor.owner_id, f"f{number}", text.encode())
    naive = [
        f"f{number}:{at}:{line}"
        for number, text in enumerate(texts)
        for at, line in enumerate(text.removesuffix("\n").split("\n") if text else [], 1)
        if re.search(pattern.replace("$", r"\Z"), line)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("khala.tools.file_search.MAX_PAGE_MATCHES", page)
        assert await every_line(db, actor, pattern) == naive
        with_context = await every_line(db, actor, pattern, context=2)
        assert [line for line in with_context if re.match(r"f\d+:", line)] == naive


async def test_a_search_says_how_many_lines_there_are_and_shows_what_is_around(db: Database) -> None:
    actor = await new_actor(db)
    await write(db, actor, "src/a.py", "one\ntwo\nTHREE\nfour\nfive\nthree\n")
    await write(db, actor, "b.md", "three")
    result = await call(GrepFiles(db), actor, pattern="three", glob="*.py", ignoreCase=True, context=1)
    assert result.text.split("\n") == [
        "[2 matching lines]",
        "src/a.py-2-two", "src/a.py:3:THREE", "src/a.py-4-four", "src/a.py-5-five", "src/a.py:6:three",
    ]  # fmt: skip
    assert (await call(GrepFiles(db), actor, pattern="three", path="b.md")).text == "[1 matching line]\nb.md:1:three"
    assert (
        await call(GrepFiles(db), actor, pattern="three", path="src/")
    ).text == "[1 matching line]\nsrc/a.py:6:three"
    assert (await call(GrepFiles(db), actor, pattern="(")).result.code == "bad_arguments"
    assert (await call(GrepFiles(db), actor, pattern="a(?=b)")).result.code == "bad_arguments"
    assert (await call(GrepFiles(db), actor, pattern="a", path="none")).result.code == "not_found"


async def test_a_pattern_with_exponential_backtracking_takes_linear_time(db: Database) -> None:
    actor = await new_actor(db)
    await write(db, actor, "a", "a" * 100_000 + "!")
    assert (await call(GrepFiles(db), actor, pattern="^(a+)+$")).text == "[0 matching lines]"


async def test_a_long_line_is_shown_around_the_match(db: Database) -> None:
    actor = await new_actor(db)
    await write(db, actor, "min.js", "x" * 50_000 + "needle" + "y" * 50_000)
    result = await call(GrepFiles(db), actor, pattern="needle")
    assert "needle" in result.text
    assert "of 100,006 characters" in result.text
    assert len(result.text) < 2000


async def test_a_line_longer_than_a_piece_is_searched_whole(db: Database) -> None:
    actor = await new_actor(db)
    for name, text in (("a", "x" * 65_500 + "needle" + "y" * 100_000), ("b", "needle" + "y" * 200_000),
                       ("c", "x" * 200_000 + "needle"), ("d", "é" * 100_000)):  # fmt: skip
        await write(db, actor, name, text)
    result = await call(GrepFiles(db), actor, pattern="needle")
    assert [line[:4] for line in result.text.split("\n")] == ["[3 m", "a:1:", "b:1:", "c:1:"]
    assert all("needle" in line for line in result.text.split("\n")[1:])
    assert (await call(GrepFiles(db), actor, pattern="^y|x$|^é{9}$")).text == "[0 matching lines]"
    assert (await call(GrepFiles(db), actor, pattern="needle$")).text.startswith("[1 matching line]\nc:1:")


class SlowPattern:
    """A pattern whose search takes until the test lets it go on."""

    programsize = 1

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun = threading.Event()
        self.searched = 0

    def search(self, text: bytes | str) -> None:
        self.searched += 1
        self.begun.set()
        assert self.go_on.wait(30)


async def test_slow_searches_delay_no_other_work_and_end_when_they_are_cancelled(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = await new_actor(db)
    await write(db, actor, "a", "x\n" * 5000)
    slow = SlowPattern()
    monkeypatch.setattr(file_search, "compile_pattern", lambda *_, **__: slow)
    calls = [asyncio.create_task(call(GrepFiles(db), actor, pattern="x")) for _ in range(40)]
    try:
        async with asyncio.timeout(20):
            # Other work in the default thread pool must not wait for forty searches.
            assert await asyncio.to_thread(slow.begun.wait, 10)
            await read(db, actor, "a")
        assert slow.searched <= file_search.SEARCH_THREADS
        for task in calls:
            task.cancel()
        await asyncio.wait(calls, timeout=20)
        assert all(task.cancelled() for task in calls)
    finally:
        slow.go_on.set()
    await asyncio.wait_for(file_search._threads.run(len, ""), 20)
    assert slow.searched <= file_search.SEARCH_THREADS * (file_search.CHECK_INTERVAL_LINES + 1), "not all 5,000 lines"


async def test_a_search_that_times_out_fails_with_advice(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    actor = await new_actor(db)
    await write(db, actor, "a", "x\n" * 5000)
    monkeypatch.setattr(file_search, "SEARCH_TIMEOUT_SECONDS", -1.0)
    result = await call(GrepFiles(db), actor, pattern="x")
    assert result.result.code == "timeout"
    assert "simpler pattern" in result.text


async def test_todos_are_numbered_and_a_call_that_is_repeated_adds_one(db: Database) -> None:
    actor = await new_actor(db)
    for _ in range(2):
        assert (await call(TodoAdd(db), actor, text="Probe", key="call 1")).json == {"id": 1, "text": "Probe"}
    assert (await call(TodoAdd(db), actor, text="Pylon")).json["id"] == 2
    for _ in range(2):
        assert (await call(TodoComplete(db), actor, id=1)).text == "Todo 1 is done: Probe"
    assert (await call(TodoList(db), actor)).json == {
        "todos": [{"id": 1, "text": "Probe", "done": True}, {"id": 2, "text": "Pylon"}]
    }
    assert (await call(TodoComplete(db), actor, id=3)).result.code == "not_found"
    assert "id: required" in (await call(TodoComplete(db), actor)).text


async def test_todos_added_at_once_get_distinct_numbers_within_the_limit(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(todos, "MAX_OPEN_TODOS", 20)
    actor = await new_actor(db)
    calls = await asyncio.gather(*(call(TodoAdd(db), actor, text=f"Todo {number}") for number in range(50)))
    assert sorted(result.json["id"] for result in calls if result.ok) == list(range(1, 21))
    for number in range(1, 21):
        await call(TodoComplete(db), actor, id=number)
    assert [(await call(TodoAdd(db), actor, text="more")).json["id"] for _ in range(20)] == list(range(21, 41))
    for number in range(21, 41):
        await call(TodoComplete(db), actor, id=number)
    await call(TodoAdd(db), actor, text="last")
    async with db.driver() as driver:
        assert len(await todos.of_owner(driver, actor.owner_id)) == 21
