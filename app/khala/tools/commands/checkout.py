"""Git for the steps of plans: commits the changes of a step in the command's folder, or in a worktree and merges them.

Refs make an attempt safe to repeat. They are named after the plan and the step:

- `refs/heads/khala/…`: the branch of the step's worktree.
- `refs/khala/begun/…`: the last commit when the step began. While it exists, changes of the worktree are the step's
  own; changes of the folder are, while it also is the last commit.
- `refs/khala/done/…`: the step's commit. It is written before anything that shows the commit. An attempt that finds it,
  in a plan that does not know that the step was completed, only merges it.
- `refs/khala/conflicted/…`: the step's commit, in place of `done`, if it conflicted. An attempt only merges the branch
  if a person has resolved the conflict since.

Nothing is pushed. Branches only move forward. What is left when the plan ends, `leftovers` removes.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from uuid import UUID

from khala.domain.chat import StepCheckout, StepRef
from khala.tools.commands import cut_off_merge, leftovers
from khala.tools.commands.config import THREAD, Command
from khala.tools.commands.folder_locks import locked, wait_for_index
from khala.tools.commands.git import Git, GitConflictError, GitError, list_files, printable
from khala.tools.commands.leftovers import FOLDER_LOCK
from khala.tools.commands.process import uninterrupted
from khala.tools.commands.step_refs import StepNames, short

MAX_SUBJECT_CHARACTERS = 72
TRAILER = "Khala-Step: "


async def _at_once() -> None:
    """Wait for no other step."""


class Checkout:
    """The folder of one attempt.

    `summary` is None, or that of an attempt whose commit was merged and which the plan does not know. Then there is
    nothing to do any more.
    """

    def __init__(self, command: Command, folder: Path, step: StepRef, rules: StepCheckout) -> None:
        self.summary: str | None = None
        self._main = Git(folder, command.git_author)
        self._allows_programs = command.git_filters
        self._step = step
        self._rules = rules
        self._names = StepNames.of(step)
        self._main_branch = ""
        self._tree = self._names.tree(folder)
        self.folder = self._tree if rules.worktree else folder
        self._work = self._main.at(self.folder)
        self._locks = folder

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, command: Command, thread_id: UUID, step: StepRef, rules: StepCheckout, deployment: str
    ) -> AsyncIterator["Checkout"]:
        """The folder for this attempt of a command that has one. No other attempt uses it meanwhile.

        `deployment` names the database of the plan, so that what is left of a deleted plan is known as its own. Raises
        `GitError`, also if the folder has changes that are not the step's own.
        """
        assert command.folder is not None
        # Resolved, because git names folders without symbolic links.
        folder = await asyncio.to_thread(Path(command.folder.replace(THREAD, str(thread_id))).resolve)
        checkout = cls(command, folder, step, rules)
        await checkout._check()
        locks = checkout._locks
        async with locked(checkout._names.lock(locks) if rules.worktree else locks / FOLDER_LOCK):
            async with checkout._locked_folder():
                await uninterrupted(checkout._begin())
                await leftovers.mark(locks, step.plan_id, deployment)
            yield checkout

    async def finish(self, summary: str, wait_for_turn: Callable[[], Awaitable[None]] = _at_once) -> None:
        """Commit the changes of the completed step, wait until it is its turn, and merge its branch.

        Raises `GitConflictError` if the branch conflicts. Then it is kept with its worktree, as after all errors.
        """
        await uninterrupted(self._commit(summary))
        if self._rules.worktree:
            await wait_for_turn()
        async with self._locked_folder():
            await uninterrupted(self._integrate())

    def _locked_folder(self) -> AbstractAsyncContextManager[None]:
        """The lock for changes of the folder. An attempt without a worktree holds it all the time."""
        return locked(self._locks / FOLDER_LOCK) if self._rules.worktree else nullcontext()

    async def _check(self) -> None:
        """Check that the folder can be used."""
        git = self._main
        if await git.text("rev-parse", "--show-toplevel") != str(git.folder):
            raise GitError(f"{git.folder} is not the top folder of its Git checkout.")
        self._main_branch = await git.branch()
        if await git.commit("HEAD") is None:
            raise GitError(f"The Git checkout {git.folder} has no commit yet.")
        await self._check_programs(git)
        self._locks = await leftovers.lock_folder(git)

    async def _check_programs(self, git: Git) -> None:
        if not self._allows_programs:
            await git.refuse_programs()

    async def _begin(self) -> None:
        await cut_off_merge.undo(self._main)
        if self._rules.resumes and await self._resume():
            return
        await self._main.delete_ref(self._names.done)
        begun = await self._main.commit(self._names.begun)
        head = await self._head()
        if self._rules.worktree:
            await self._require_clean()
            await self._make_worktree(begun, head)
        else:
            if begun != head:
                await self._require_clean()
            await self._main.run("update-ref", self._names.begun, head)

    async def _resume(self) -> bool:
        """Merge what an earlier attempt committed, if it can be merged. Returns whether the step is complete."""
        conflicted = await self._main.commit(self._names.conflicted)
        summary = "" if conflicted is None else await self._summary(conflicted)
        if await self._main.commit(self._names.done) is None and (
            conflicted is None or not await self._take_resolution(conflicted, summary)
        ):
            return False
        done = await self._main.commit(self._names.done)
        assert done is not None
        self.summary = await self._summary(done) or summary
        await self._integrate()
        return True

    async def _take_resolution(self, conflicted: str, summary: str) -> bool:
        """Whether the conflict of this commit was resolved: on the step's branch, or on that of the folder.

        Then the commit with the resolution is the step's. A merge in the worktree that has no conflicts is committed.
        """
        git, head = self._main, await self._head()
        if await git.contains(head, conflicted):
            await git.run("update-ref", self._names.done, conflicted)
            return True
        if await asyncio.to_thread((self._tree / ".git").exists):
            tree = git.at(self._tree)
            if await tree.branch() != self._names.branch or await tree.unmerged_files():
                return False
            if self._rules.worktree and await tree.commit("MERGE_HEAD") is not None:
                await self._commit(summary)
                return True
            if await tree.changed_files():
                return False
        tip = await git.commit(self._names.branch)
        if tip is None or not await git.contains(tip, conflicted) or (await self._merge_tree(head, tip))[1]:
            return False
        await git.run("update-ref", self._names.done, tip)
        return True

    async def _head(self) -> str:
        head = await self._main.commit("HEAD")
        assert head is not None
        return head

    async def _require_clean(self) -> None:
        if not self._rules.allow_dirty and (names := await self._main.changed_files()):
            raise GitError(f"{self._main.folder} has changes that are not committed: {list_files(names)}.")

    async def _make_worktree(self, begun: str | None, head: str) -> None:
        """Make the step's worktree, unless it exists since an earlier attempt, whose work is in it."""
        if begun is not None and self._tree.is_dir():
            return
        git, branch = self._main, short(self._names.branch)
        # An executor may have ended while it made the worktree.
        await leftovers.remove_tree(git, self._tree)
        await asyncio.to_thread(self._tree.parent.mkdir, parents=True, exist_ok=True)
        if begun is not None and await git.commit(self._names.branch) is not None:
            await git.run("worktree", "add", "--force", "--force", str(self._tree), branch)
        else:
            await git.run("worktree", "add", "--force", "--force", "-B", branch, str(self._tree), head)
        await git.run("update-ref", self._names.begun, head)

    async def _commit(self, summary: str) -> None:
        git, expected = self._work, self._names.branch if self._rules.worktree else self._main_branch
        await self._check_programs(git)
        if await git.branch() != expected:
            raise GitError(f"The command has checked out another branch in {git.folder}.")
        if unmerged := await git.unmerged_files():
            raise self._conflict(unmerged)
        await wait_for_index(git, removes=self._rules.worktree)
        await git.run("add", "--all")
        tree = await git.text("write-tree")
        head, merged = await git.commit("HEAD"), await git.commit("MERGE_HEAD")
        assert head is not None
        commit = head
        if merged is not None or tree != await git.text("rev-parse", "HEAD^{tree}"):
            parents = [word for parent in (head, merged) if parent is not None for word in ("-p", parent)]
            message = _message(self._rules.title, summary, self._step)
            commit = await git.text("commit-tree", tree, *parents, "-m", message)
        await git.run("update-ref", self._names.done, commit)
        await git.run("update-ref", "-m", "commit: step of a plan", "HEAD", commit, head)
        if merged is not None:
            await git.run("merge", "--quit")

    async def _integrate(self) -> None:
        """Merge the step's commit into the folder's branch, and remove what is needed no more."""
        git, done = self._main, await self._main.commit(self._names.done)
        assert done is not None
        if self._rules.worktree:
            await cut_off_merge.undo(git)
        head = await self._head()
        if not await git.contains(head, done):
            if await git.branch() != self._main_branch:
                raise GitError(f"Another branch was checked out in {git.folder}.")
            if self._rules.worktree:
                await self._require_clean()
            await wait_for_index(git, removes=False)
            target = done if await git.contains(done, head) else await self._merge_commit(head, done)
            if self._rules.worktree:
                await cut_off_merge.move_forward(git, head, target)
            else:  # The folder has the changes already.
                await git.run("merge", "--ff-only", "--quiet", "--no-autostash", target)
        tip = await git.commit(self._names.branch) if self._rules.worktree else None
        if tip is not None and await git.contains(done, tip):
            await leftovers.remove_tree(git, self._tree)
            await git.delete_ref(self._names.branch)
        await git.delete_ref(self._names.conflicted)
        await git.delete_ref(self._names.begun)

    async def _merge_commit(self, head: str, done: str) -> str:
        """A commit that merges the step's into the folder's, without touching the folder."""
        tree, names = await self._merge_tree(head, done)
        if names:
            await self._main.run("update-ref", self._names.conflicted, done)
            await self._main.delete_ref(self._names.done)
            raise self._conflict(names)
        subject = _message(f"Merge {self._rules.title}", "", self._step)
        return await self._main.text("commit-tree", tree, "-p", head, "-p", done, "-m", subject)

    async def _merge_tree(self, head: str, commit: str) -> tuple[str, list[str]]:
        """The tree of a merge, and the files that conflict."""
        options = ("--write-tree", "--no-messages", "--name-only", "-z")
        code, output = await self._main.run("merge-tree", *options, head, commit, codes=(0, 1, 129))
        if code == 129:
            raise GitError("To merge steps, the server needs Git 2.38 or later.")
        tree, *names = output.rstrip("\0").split("\0")
        return tree, names if code == 1 else []

    def _conflict(self, names: list[str]) -> GitConflictError:
        branch, main = short(self._names.branch), short(self._main_branch)
        how = (
            f" Its branch {branch} is kept in {self._tree}. Merge {main} there and retry the step, or let its agent"
            " merge by a retry."
        )
        conflict = f"The step's changes conflict with others in {list_files(names)}."
        return GitConflictError(conflict + (how if self._rules.worktree else ""))

    async def _summary(self, commit: str) -> str:
        body = await self._main.text("log", "-1", "--format=%b", commit)
        summary, trailer, _ = body.rpartition(TRAILER)
        return summary.strip() if trailer else ""


def _message(title: str, summary: str, step: StepRef) -> str:
    subject = printable(title, MAX_SUBJECT_CHARACTERS) or "Complete a step"
    trailer = f"{TRAILER}{step.plan_id}/{printable(step.step_id, 64)}"
    return "\n\n".join(filter(None, (subject, summary.replace("\0", "").strip(), trailer)))
