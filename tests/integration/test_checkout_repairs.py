"""Checkouts of steps after conflicts, crashes and full disks: what is resumed, restored and removed."""

import os
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from khala.domain import ids
from khala.plans.checkout_cleaner import CheckoutCleaner
from khala.store.blobs import objects
from khala.store.postgres.database import Database
from khala.tools.commands import GitConflictError, GitError, folder_locks, leftovers
from khala.tools.commands.git import Git
from tests.support.checkouts import git, make_checkout, subjects
from tests.support.step_checkouts import PLAN, command, opened, refs, work


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_checkout(tmp_path / "work")


async def conflict(folder: Path, step: str = "a") -> Path:
    """The worktree of a step whose work conflicts in the file `base`."""
    async with opened(folder, step, worktree=True) as found:
        (found.folder / "base").write_text("theirs")
        await work(folder, f"before {step}", {"base": "ours"}, worktree=True)
        with pytest.raises(GitConflictError, match=r"in base\."):
            await found.finish("Wrote a.")
    return Path(found.folder)


@pytest.mark.parametrize("way", ["commit", "merge", "main", "revert"])
async def test_a_conflict_that_a_person_has_resolved_is_merged_without_the_command(folder: Path, way: str) -> None:
    tree = await conflict(folder)
    if way in ("commit", "merge"):
        git(tree, "merge", "-q", "-s", "ours", "--no-commit", "main")
        if way == "commit":
            git(tree, "commit", "-q", "-m", "Resolve")
    elif way == "main":
        git(folder, "merge", "-q", "-X", "theirs", git(tree, "symbolic-ref", "--short", "HEAD"))
    else:
        git(folder, "revert", "--no-edit", "HEAD")
    async with opened(folder, "a", worktree=True) as again:
        assert again.summary == "Wrote a."
    assert ((folder / "base").read_text(), tree.exists()) == ("theirs", False)
    assert (git(folder, "status", "--porcelain"), refs(folder)) == ("", ["done", "done"])


@pytest.mark.parametrize("way", ["nothing", "half", "changes"])
async def test_a_conflict_that_is_not_resolved_is_left_to_the_command(folder: Path, way: str) -> None:
    tree = await conflict(folder)
    if way == "half":
        with pytest.raises(Exception, match="merge"):
            git(tree, "merge", "-q", "main")
    elif way == "changes":
        (tree / "note").touch()
    async with opened(folder, "a", worktree=True) as again:
        assert (again.summary, again.folder) == (None, tree)
        if way != "half":
            git(tree, "merge", "-q", "-s", "ours", "--no-commit", "main")
        (tree / "base").write_text("both")
        git(tree, "add", "base")
        await again.finish("Wrote both.")
    assert (folder / "base").read_text() == "both"
    assert refs(folder) == ["done", "done"]


async def cut_off(folder: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    """A merge of four files that ends with this error after it has changed three of them."""
    run = Git.run

    async def lose(self: Git, *arguments: str, **options: Any) -> Any:
        if arguments[0] == "merge" and not self.folder.parent.name.startswith(str(PLAN)):
            (folder / "base").write_text("new")
            (folder / "added").mkdir()
            (folder / "added/whole").write_text("whole")
            (folder / "cut").write_text("be")
            raise error("No space left on device")
        return await run(self, *arguments, **options)

    async with opened(folder, "a", worktree=True) as found:
        (found.folder / "added").mkdir()
        for name, text in (("base", "new"), ("added/whole", "whole"), ("cut", "begun"), ("last", "last")):
            (found.folder / name).write_text(text)
        with monkeypatch.context() as patch:
            patch.setattr(Git, "run", lose)
            with pytest.raises(error):
                await found.finish("Wrote a.")


@pytest.mark.parametrize("error", [GitError, ConnectionAbortedError])
async def test_a_merge_that_a_full_disk_or_a_crash_cut_off_is_undone_and_repeated(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    await cut_off(folder, monkeypatch, error)
    assert (git(folder, "status", "--porcelain") == "") == (error is GitError)
    (folder / "mine").touch()
    async with opened(folder, "a", worktree=True, allow_dirty=True) as again:
        assert again.summary == "Wrote a."
    assert (folder / "cut").read_text() == "begun"
    assert git(folder, "status", "--porcelain") == "?? mine"
    assert (subjects(folder), refs(folder)) == (["Base", "Do a"], ["done"])


async def test_files_that_a_person_changed_after_a_crash_are_not_touched(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cut_off(folder, monkeypatch, ConnectionAbortedError)
    (folder / "base").write_text("mine")
    with pytest.raises(GitError, match="was cut off, and files of it were changed since: base"):
        await work(folder, "a", {}, worktree=True)
    assert ((folder / "base").read_text(), (folder / "cut").read_text()) == ("mine", "be")
    git(folder, "checkout", "-q", "base")
    async with opened(folder, "a", worktree=True) as again:
        assert again.summary == "Wrote a."


async def test_a_locked_index_fails_the_merge_and_the_next_attempt_only_merges(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_locks, "INDEX_TIMEOUT_SECONDS", 0.2)
    lock = folder / ".git/index.lock"
    async with opened(folder, "a", worktree=True) as found:
        (found.folder / "a").touch()
        lock.touch()
        with pytest.raises(GitError, match=f"Another git is at work .* delete {lock}"):
            await found.finish("Wrote a.")
    lock.unlink()
    async with opened(folder, "a", worktree=True) as again:
        assert again.summary == "Wrote a."


async def test_a_lock_that_a_dead_git_left_in_a_worktree_is_removed(folder: Path) -> None:
    async with opened(folder, "a", worktree=True) as found:
        (found.folder / "a").touch()
        lock = Path(git(found.folder, "rev-parse", "--path-format=absolute", "--git-path", "index.lock"))
        lock.touch()
        os.utime(lock, (0, 0))
        await found.finish("Wrote a.")
    assert (folder / "a").exists()


async def test_a_step_waits_for_its_turn_after_its_commit_and_before_its_merge(folder: Path) -> None:
    found = []

    async def wait() -> None:
        found.append((git(checkout.folder, "log", "-1", "--format=%s"), (folder / "a").exists()))

    async with opened(folder, "a", worktree=True) as checkout:
        (checkout.folder / "a").touch()
        await checkout.finish("Wrote a.", wait)
    assert (found, (folder / "a").exists()) == ([("Do a", False)], True)


async def remove(folder: Path, *plan_ids: UUID) -> bool:
    [(path, found)] = leftovers.find_folders({"one": command(folder)}).items()
    return await leftovers.remove(Git(path, found.git_author), plan_ids)


async def test_what_an_ended_plan_left_is_removed_but_for_work_that_is_nowhere_else(folder: Path) -> None:
    git(folder, "branch", "khala/mine")
    git(folder, "worktree", "add", "-q", "-b", "other", str(folder.with_name("other")))
    conflicted = await conflict(folder)
    for name in ("nothing", "changed"):
        async with opened(folder, name, worktree=True) as found:
            pass
    (found.folder / "half").touch()
    (folder / "dirty").touch()
    await remove(folder, ids.new())
    assert conflicted.exists()
    await remove(folder, PLAN)
    assert (conflicted.exists(), found.folder.exists()) == (False, True)
    branches = git(folder, "branch", "--format=%(refname:short)").split("\n")
    assert [name.rpartition("/")[2].partition("-")[0] for name in branches] == ["a", "changed", "mine", "main", "other"]
    assert git(folder, "for-each-ref", "refs/khala") == ""
    assert [path.name for path in (folder / ".git/khala").iterdir()] == ["folder.lock"]
    assert [path.name for path in folder.with_name("work.khala").rglob("half")] == ["half"]
    assert ((folder / "dirty").exists(), folder.with_name("other").is_dir()) == (True, True)
    assert git(folder, "worktree", "list").count("\n") == 2


async def test_a_deleted_plan_of_this_deployment_is_known_by_its_mark(db: Database, folder: Path) -> None:
    cleaner = CheckoutCleaner(db, {"one": command(folder)})
    async with opened(folder, "a", worktree=True):
        pass
    assert await cleaner.clean()
    assert "begun" in refs(folder), "a plan of another deployment stays"
    async with db.driver() as driver:
        deployment = await objects.database_name(driver)
    async with opened(folder, "a", worktree=True, deployment=deployment):
        pass
    assert await CheckoutCleaner(db, {"one": command(folder)}).clean()
    assert (refs(folder), list((folder / ".git/khala").glob("*.plan"))) == ([], [])


async def test_what_a_step_at_work_has_is_not_removed_and_empty_folders_are(folder: Path) -> None:
    async with opened(folder, "a", worktree=True) as found:
        (found.folder / "a").touch()
        assert not await remove(folder, PLAN)
        await found.finish("Wrote a.")
    assert await remove(folder, PLAN)
    assert (refs(folder), folder.with_name("work.khala").exists()) == ([], False)


def test_the_folders_of_threads_are_found(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_checkout(tmp_path / f"of-{name}/work")
    (tmp_path / "of-three/work").mkdir(parents=True)
    found = leftovers.find_folders({"a": command(tmp_path / "of-{thread}/work"), "b": command(tmp_path / "none")})
    assert [path.parent.name for path in found] == ["of-one", "of-two"]
