"""Checkouts of steps: what is committed, merged, refused and kept."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from khala.tools.commands import GitConflictError, GitError, folder_locks
from khala.tools.commands.git import Git
from tests.support.checkouts import git, make_checkout, subjects
from tests.support.step_checkouts import PLAN, opened, refs, work

HOSTILE = "--exec=touch x; `touch x`\n\n../../evil\u202e\x1b[31m " + "é" * 200


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_checkout(tmp_path / "work")


async def test_each_step_is_a_commit_with_its_title_and_summary_and_without_changes_there_is_none(folder: Path) -> None:
    await work(folder, "a", {"a": "1", "base": "changed"}, "Wrote a.\n\nAll of it.")
    await work(folder, "b", {})
    assert subjects(folder) == ["Base", "Do a"]
    body, _, author = git(folder, "log", "-1", "--format=%b%x00%an <%ae>, %cn").partition("\0")
    assert body == f"Wrote a.\n\nAll of it.\n\nKhala-Step: {PLAN}/a\n"
    assert author == "Ada <ada@localhost>, Ada"
    assert git(folder, "status", "--porcelain") == ""


async def test_a_dirty_folder_is_refused_with_its_files_and_not_touched_unless_the_plan_allows_it(folder: Path) -> None:
    (folder / "base").write_text("mine")
    (folder / "new file").write_text("mine")
    for worktree in (False, True):
        with pytest.raises(GitError, match="not committed: base, new file"):
            await work(folder, "a", {"a": "1"}, worktree=worktree)
    assert (subjects(folder), refs(folder), (folder / "base").read_text()) == (["Base"], [], "mine")
    await work(folder, "a", {"a": "1"}, worktree=True, allow_dirty=True)
    assert git(folder, "status", "--porcelain") == 'M base\n?? "new file"'
    await work(folder, "b", {"b": "1"}, allow_dirty=True)
    assert git(folder, "show", "--format=", "--name-only") == "b\nbase\nnew file"


async def test_changes_of_an_attempt_that_did_not_complete_belong_to_the_next_one_of_its_step(folder: Path) -> None:
    for worktree in (False, True):
        step, name = f"a{worktree}", f"file{worktree}"
        async with opened(folder, step, worktree=worktree) as found:
            (found.folder / name).write_text("half")
        if not worktree:
            with pytest.raises(GitError, match=name):
                await work(folder, "other", {})
        async with opened(folder, step, worktree=worktree) as found:
            assert (found.folder / name).read_text() == "half"
            await found.finish("Done.")
        assert (folder / name).read_text() == "half"


async def test_steps_side_by_side_have_worktrees_and_are_merged(folder: Path) -> None:
    async with opened(folder, "a", worktree=True) as first, opened(folder, "b", worktree=True) as second:
        assert len({folder, first.folder, second.folder}) == 3
        (first.folder / "a").write_text("1")
        (second.folder / "b").write_text("2")
        assert not (folder / "a").exists()
        await asyncio.gather(first.finish("A."), second.finish("B."))
    assert {path.name for path in folder.iterdir()} == {".git", "base", "a", "b"}
    assert sorted(git(folder, "log", "--no-merges", "--format=%s").split("\n")) == ["Base", "Do a", "Do b"]
    assert subjects(folder)[-1].startswith("Merge Do ")
    assert git(folder, "status", "--porcelain") == ""
    assert git(folder, "worktree", "list").count("\n") == 0
    assert refs(folder) == ["done", "done"]


async def test_a_conflict_names_the_files_keeps_the_work_and_can_be_resolved_in_the_worktree(folder: Path) -> None:
    async with opened(folder, "a", worktree=True) as found:
        (found.folder / "base").write_text("theirs")
        await work(folder, "b", {"base": "ours"}, worktree=True)
        with pytest.raises(GitConflictError, match=r"in base\. Its branch khala/.* is kept in .* Merge main there"):
            await found.finish("A.")
    assert (git(folder, "status", "--porcelain"), (folder / "base").read_text()) == ("", "ours")
    assert git(found.folder, "show", "HEAD:base") == "theirs"
    async with opened(folder, "a", worktree=True) as again:
        assert (again.summary, again.folder) == (None, found.folder)
        git(again.folder, "merge", "-q", "-s", "ours", "--no-commit", "main")
        await again.finish("A, merged.")
    assert ((folder / "base").read_text(), found.folder.exists()) == ("theirs", False)
    assert len(git(folder, "log", "-1", "--format=%p").split()) == 2


async def test_unresolved_conflicts_of_the_command_are_not_committed(folder: Path) -> None:
    git(folder, "checkout", "-q", "-b", "other")
    await work(folder, "x", {"base": "other"})
    git(folder, "checkout", "-q", "main")
    await work(folder, "y", {"base": "main"})
    async with opened(folder, "a") as found:
        with pytest.raises(Exception, match="merge"):
            git(folder, "merge", "-q", "other")
        with pytest.raises(GitConflictError, match="base"):
            await found.finish("A.")
    assert subjects(folder) == ["Base", "Do y"]


@pytest.mark.parametrize("worktree", [False, True])
@pytest.mark.parametrize("lost", ["HEAD", "merge", "worktree remove", "begun"])
async def test_a_step_that_lost_its_executor_after_its_commit_is_merged_once_and_not_done_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, worktree: bool, lost: str
) -> None:
    """Each call of git is lost from the one that sets HEAD, merges, or cleans up."""
    run = Git.run

    async def lose(self: Any, *arguments: str, **options: Any) -> Any:
        if lost in " ".join(arguments) and arguments[0] in ("update-ref", "merge", "worktree") and armed:
            raise ConnectionAbortedError
        return await run(self, *arguments, **options)

    armed = False
    async with opened(folder, "a", worktree=worktree) as found:
        (found.folder / "a").write_text("1")
        armed = True
        monkeypatch.setattr(Git, "run", lose)
        if worktree or lost in ("HEAD", "begun"):
            with pytest.raises(ConnectionAbortedError):
                await found.finish("Wrote a.")
        else:
            await found.finish("Wrote a.")
        monkeypatch.undo()
    async with opened(folder, "a", worktree=worktree) as again:
        assert again.summary == "Wrote a."
    assert (subjects(folder), (folder / "a").read_text()) == (["Base", "Do a"], "1")
    assert (git(folder, "status", "--porcelain"), refs(folder)) == ("", ["done"])
    async with opened(folder, "a", worktree=worktree, resumes=False) as anew:
        assert anew.summary is None


async def test_a_worktree_that_was_half_made_is_made_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Git.run

    async def lose(self: Any, *arguments: str, **options: Any) -> Any:
        if arguments[0] == "update-ref" and "begun" in arguments[1]:
            raise ConnectionAbortedError
        return await run(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Git, "run", lose)
        with pytest.raises(ConnectionAbortedError):
            await work(folder, "a", {}, worktree=True)
    [half] = (path.parent for path in folder.parent.rglob("base") if path.parent != folder)
    (half / "base").unlink()
    await work(folder, "a", {"a": "1"}, worktree=True)
    assert git(folder, "ls-files") == "a\nbase"


@pytest.mark.parametrize("worktree", [False, True])
async def test_hostile_titles_and_ids_are_only_text(folder: Path, worktree: bool) -> None:
    await work(folder, HOSTILE, {"a": "1"}, "-m x\0\n# y", title=HOSTILE, worktree=worktree)
    subject = subjects(folder)[-1]
    assert subject.startswith("--exec=touch x; `touch x` ../../evil [31m éé")
    assert len(subject) == 72
    assert git(folder, "log", "-1", "--format=%b").startswith("-m x\n# y\n\nKhala-Step: ")
    assert {path.name for path in folder.iterdir()} == {".git", "base", "a"}


async def test_hooks_never_run_and_filters_only_if_the_operator_allows_them(folder: Path) -> None:
    hook = folder / ".git/hooks/post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {folder}/hooked\n")
    hook.chmod(0o755)
    for name in ("pre-commit", "post-merge", "post-commit", "reference-transaction"):
        hook.copy(hook.with_name(name)) if hasattr(hook, "copy") else hook.with_name(name).symlink_to(hook)
    await work(folder, "a", {"a": "1"}, worktree=True)
    git(folder, "config", "filter.loud.clean", "tr a-z A-Z")
    with pytest.raises(GitError, match=r"does not allow: filter\.loud\.clean"):
        await work(folder, "b", {})
    await work(folder, "b", {"b": "small", ".gitattributes": "b filter=loud"}, filters=True)
    assert git(folder, "show", "HEAD:b") == "SMALL"
    assert not (folder / "hooked").exists()


async def test_filters_that_the_command_sets_are_refused_before_the_commit(folder: Path) -> None:
    async with opened(folder, "a") as found:
        git(folder, "config", "filter.loud.clean", f"touch {folder}/filtered; cat")
        (folder / ".gitattributes").write_text("* filter=loud")
        with pytest.raises(GitError, match="does not allow"):
            await found.finish("A.")
    assert not (folder / "filtered").exists()


async def test_folders_that_are_no_checkout_or_on_no_branch_are_refused(folder: Path) -> None:
    (folder / "sub").mkdir()
    git(folder, "checkout", "-q", "--detach")
    for path, problem in (
        (folder.parent, "not a git repository"),
        (folder / "sub", "not a git repository"),
        (folder, "branch"),
    ):
        with pytest.raises(GitError, match=problem):
            await work(path, "a", {})
    git(folder, "checkout", "-q", "main")
    git(folder, "config", "core.worktree", str(folder.parent))
    with pytest.raises(GitError, match="not the top folder"):
        await work(folder, "a", {})


async def test_one_attempt_at_a_time_changes_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_locks, "LOCK_TIMEOUT_SECONDS", 0.1)
    async with opened(folder, "a"):
        for worktree in (False, True):
            with pytest.raises(GitError, match="Another step"):
                await work(folder, "b", {}, worktree=worktree)
    await work(folder, "b", {})
