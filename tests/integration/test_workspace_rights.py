"""Ownership of workspaces: claims move them, exports contain them and plans, and they are deleted with their owner."""

import asyncio
from datetime import timedelta
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khala.domain.access import Caller
from khala.domain.errors import NotFound
from khala.store.accounts import accounts, claims
from khala.store.operations import account_export, retention
from khala.store.postgres.database import Database
from khala.store.threads import threads
from khala.store.tools import todos, user_tools, workspace_files
from khala.store.tools.user_tools import UserToolDefinition
from tests.support.callers import owned_thread, person
from tests.support.store import CALLER, new_thread
from tests.support.stored_plans import finished_plan, new_plan


async def fill(db: Database, owner_id: UUID, *paths: str) -> None:
    for path in paths:
        await workspace_files.write(db, owner_id, path, f"{path} of {owner_id}".encode())
    await todos.add(db, owner_id, "Probe", key=f"probe of {owner_id}")
    await todos.add(db, owner_id, "Pylon", key=f"pylon of {owner_id}")
    await todos.complete(db, owner_id, 2)


async def workspace_of(db: Database, owner_id: UUID) -> tuple[dict[str, bytes], list[tuple[int, str, bool]]]:
    async with db.driver() as driver:
        entries = await workspace_files.entries(driver, owner_id)
        contents = await workspace_files.contents(driver, owner_id, [entry.path for entry in entries])
        listed = await todos.of_owner(driver, owner_id)
    return contents, [(todo.id, todo.text, todo.done) for todo in listed]


async def count(db: Database, owner_id: UUID) -> int:
    contents, listed = await workspace_of(db, owner_id)
    return len(contents) + len(listed)


async def test_a_claim_moves_files_and_todos_and_overwrites_nothing(db: Database) -> None:
    who = await person(db)
    thread_id = await new_thread(db)
    assert CALLER.anon_key_hash
    await fill(db, thread_id, "same.txt", "new.txt", "folder", "deep/er/file")
    await fill(db, who.id, "same.txt", "folder/inside", "deep")
    await claims.claim(db, thread_id, CALLER.anon_key_hash, who.caller)
    contents, listed = await workspace_of(db, who.id)
    aside = f"claimed/{str(thread_id)[:8]}"
    assert {path: content.decode() for path, content in contents.items()} == {
        "same.txt": f"same.txt of {who.id}",
        "folder/inside": f"folder/inside of {who.id}",
        "deep": f"deep of {who.id}",
        "new.txt": f"new.txt of {thread_id}",
        f"{aside}/same.txt": f"same.txt of {thread_id}",
        f"{aside}/folder": f"folder of {thread_id}",
        f"{aside}/deep/er/file": f"deep/er/file of {thread_id}",
    }
    assert listed == [(1, "Probe", False), (2, "Pylon", True), (3, "Probe", False), (4, "Pylon", True)]
    assert await count(db, thread_id) == 0
    await claims.claim(db, thread_id, CALLER.anon_key_hash, who.caller)
    assert await count(db, who.id) == 11


PATHS = st.sets(st.lists(st.sampled_from(["a", "b", "claimed", "x"]), min_size=1, max_size=4).map("/".join), max_size=8)


def valid_paths(paths: set[str]) -> set[str]:
    """A subset of these paths that can all be files at once."""
    chosen: set[str] = set()
    for path in sorted(paths):
        if not any(folder in chosen for folder in workspace_files.folders(path)):
            chosen.add(path)
    return chosen


@given(before=PATHS.map(valid_paths), after=PATHS.map(valid_paths))
def test_moved_files_never_conflict_with_another_file_or_folder(before: set[str], after: set[str]) -> None:
    moves = workspace_files.moved(sorted(before), after, "claimed/x")
    assert [move.before for move in moves] == sorted(before)
    together = [*after, *(move.after for move in moves)]
    assert len(set(together)) == len(together)
    assert valid_paths(set(together)) == set(together)
    assert all(move.after == move.before or move.after.startswith("claimed") for move in moves)


async def test_an_export_has_files_todos_and_tools(db: Database) -> None:
    who = await person(db)
    await fill(db, who.id, "a.txt")
    definition = UserToolDefinition(name="shout", description="Loud.", parameters={"type": "object"}, language="python")
    await user_tools.add(db, who.id, definition, "print(1)")
    async with db.driver() as driver:
        me = await accounts.get(driver, who.id)
    lines = [msgspec.json.decode(line) async for line in account_export.export_lines(db, me)]
    assert [line["type"] for line in lines] == ["user", "file", "todo", "todo", "tool"]
    assert msgspec.convert(lines[1]["data"]["content"], bytes, strict=False) == f"a.txt of {who.id}".encode()
    assert (lines[2]["data"], lines[4]["data"]["code"]) == ({"id": 1, "text": "Probe"}, "print(1)")


async def test_an_export_has_plans_with_their_steps_and_all_events_and_names_a_damaged_one(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account_export, "PAGE_ROWS", 3)
    who, other = await person(db), await person(db)
    thread_id = await owned_thread(db, who)
    await new_plan(db, await owned_thread(db, other), other.caller)
    ended = await finished_plan(db, thread_id, who.caller)
    damaged = await new_plan(db, thread_id, who.caller)
    async with db.driver() as driver:
        await driver.execute("UPDATE plan_steps SET progress = '{\"status\": 7}' WHERE plan_id = $1", damaged)
        me = await accounts.get(driver, who.id)
    lines = [msgspec.json.decode(line) async for line in account_export.export_lines(db, me)]
    found = [line for line in lines if line["type"] in ("plan", "step", "event", "damaged")]
    mine, rest = found[:-2], found[-2:]
    assert (mine[0]["data"]["id"], mine[0]["data"]["status"], mine[0]["data"]["goal"]) == (
        str(ended),
        "stopped",
        "Test",
    )
    assert [(line["data"]["id"], line["data"]["status"]) for line in mine if line["type"] == "step"] == [
        ("a", "completed"),
        ("b", "completed"),
    ]
    seqs = [line["data"]["seq"] for line in mine if line["type"] == "event"]
    assert seqs == list(range(1, mine[0]["data"]["eventSeq"] + 1))
    assert [line["type"] for line in rest] == ["plan", "damaged"]
    assert rest[1]["data"] == {"planId": str(damaged), "error": f"The step 'a' of plan {damaged} is damaged."}


async def test_deleting_an_account_deletes_its_files_todos_and_tools(db: Database) -> None:
    who, other = await person(db), await person(db)
    await fill(db, who.id, "a.txt")
    await fill(db, other.id, "a.txt")
    definition = UserToolDefinition(name="shout", description="Loud.", parameters={"type": "object"}, language="python")
    await user_tools.add(db, who.id, definition, "print(1)")
    await accounts.remove(db, who.caller)
    assert (await count(db, who.id), await count(db, other.id)) == (0, 3)
    async with db.driver() as driver:
        assert await user_tools.of_user(driver, who.id) == []


async def test_deleting_a_guests_thread_purges_its_files_and_todos(db: Database) -> None:
    gone, stays = await new_thread(db), await new_thread(db)
    for thread_id in (gone, stays):
        await fill(db, thread_id, "a.txt")
    await threads.remove(db, gone, CALLER)
    done = await retention.purge(db, retention.RetentionPolicy(idle=timedelta(0)))
    assert (done["files"], done["todos"]) == (1, 2)
    assert (await count(db, gone), await count(db, stays)) == (0, 3)


async def test_a_reset_empties_a_guests_workspace(db: Database) -> None:
    thread_id = await new_thread(db)
    await fill(db, thread_id, "a.txt")
    await threads.reset(db, thread_id, CALLER, welcome="")
    assert await count(db, thread_id) == 0


async def test_a_reset_of_a_users_thread_keeps_their_workspace(db: Database) -> None:
    who = await person(db)
    thread_id = await new_thread(db)
    assert CALLER.anon_key_hash
    await claims.claim(db, thread_id, CALLER.anon_key_hash, who.caller)
    await fill(db, who.id, "a.txt")
    await threads.reset(db, thread_id, Caller(user_id=who.id), welcome="")
    assert await count(db, who.id) == 3


async def test_an_account_that_ends_while_its_tools_write_leaves_nothing(db: Database) -> None:
    who = await person(db)

    async def write(number: int) -> bool:
        """Write until a write is refused."""
        for again in range(200):
            try:
                await workspace_files.write(db, who.id, f"f{number}", str(again).encode())
                await todos.add(db, who.id, "Probe", key=f"{number} {again % 5}")
            except NotFound:
                return True
        return False

    writing = [asyncio.create_task(write(number)) for number in range(8)]
    while not await count(db, who.id):
        await asyncio.sleep(0)
    await accounts.remove(db, who.caller)
    assert all([await task for task in writing])
    assert await count(db, who.id) == 0


async def test_a_claim_while_a_guests_tools_write_loses_and_duplicates_nothing(db: Database) -> None:
    who, thread_id = await person(db), await new_thread(db)
    assert CALLER.anon_key_hash
    writing = [asyncio.create_task(workspace_files.write(db, thread_id, f"f{number}", b"x")) for number in range(30)]
    await asyncio.wait(writing[:5])
    await claims.claim(db, thread_id, CALLER.anon_key_hash, who.caller)
    await asyncio.gather(*writing)
    (mine, _), (left, _) = await workspace_of(db, who.id), await workspace_of(db, thread_id)
    assert (len(mine) + len(left), mine.keys() & left.keys()) == (30, set())
