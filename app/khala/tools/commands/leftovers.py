"""Removes what plans that have ended left in a checkout: refs, worktrees, and branches that are merged.

Work that is nowhere else stays: a branch with commits that no other branch has, and a worktree with changes that are
not committed. So does all that Khala did not make.
"""

import asyncio
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import structlog

from khala.tools.commands.config import THREAD, Command
from khala.tools.commands.folder_locks import locked
from khala.tools.commands.git import Git, GitError
from khala.tools.commands.step_refs import BRANCHES, HEADS, KINDS, STATES, StepNames, trees

log = structlog.get_logger()

MAX_FOLDERS = 1_000
"""Folders of one command, of which there is one for each thread."""
FOLDER_LOCK = "folder.lock"
LOCK_TIMEOUT_SECONDS = 1.0
"""Time to wait for a step that is at work. What is left of it is removed the next time."""


async def remove_tree(git: Git, tree: Path) -> None:
    """Remove a worktree with its files, whether or not it is whole."""
    # The files first: git removes no worktree that is damaged, and only forgets one that has no files.
    await asyncio.to_thread(shutil.rmtree, tree, ignore_errors=True)
    await git.run("worktree", "remove", "--force", "--force", str(tree), codes=(0, 128))


def find_folders(commands: Mapping[str, Command]) -> dict[Path, Command]:
    """The folders in which commands may have committed the work of plans, as far as they exist."""
    found: dict[Path, Command] = {}
    for command in commands.values():
        if command.git and command.folder is not None:
            folders = [Path(command.folder)] if THREAD not in command.folder else _matching(command.folder)
            found |= {folder.resolve(): command for folder in folders if (folder / ".git").exists()}
    return found


def _matching(template: str) -> list[Path]:
    """The folders of threads, of which the newest may be left out if there are too many."""
    parts = Path(template).parts
    place = next(number for number, part in enumerate(parts) if THREAD in part)
    root, rest = Path(*parts[:place]), Path(*parts[place + 1 :])
    names = sorted(root.glob(parts[place].replace(THREAD, "*"))) if root.is_dir() else []
    return [name / rest for name in names[:MAX_FOLDERS]]


async def plans_in(git: Git) -> set[UUID]:
    """The plans that have refs in this checkout, but for branches. Raises `GitError`."""
    refs = [f"{STATES}{kind}/" for kind in KINDS]
    _, output = await git.run("for-each-ref", "--format=%(refname)", *refs)
    return {plan_id for plan_id, _ in StepNames.in_refs(output)}


async def mark(locks: Path, plan_id: UUID, deployment: str) -> None:
    """Note in the folder of the locks that a plan of this deployment has refs in the checkout."""
    await asyncio.to_thread(_mark_of(locks, plan_id).write_text, deployment)


async def marked(git: Git, plan_ids: Collection[UUID], deployment: str) -> set[UUID]:
    """Those of the plans that are this deployment's by their marks. Raises `GitError` and `OSError`."""
    locks = await lock_folder(git)
    return {plan_id for plan_id in plan_ids if _read(_mark_of(locks, plan_id)) == deployment}


def _mark_of(locks: Path, plan_id: UUID) -> Path:
    return locks / f"{plan_id}.plan"


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


async def remove(git: Git, plan_ids: Collection[UUID]) -> bool:
    """Remove what these plans left in the checkout. Returns whether that is all, as no step is still at work.

    Raises `GitError`.
    """
    refs = [f"{STATES}{kind}/" for kind in KINDS]
    _, output = await git.run("for-each-ref", "--format=%(refname)", *refs, BRANCHES)
    steps = {names.name: names for plan_id, names in StepNames.in_refs(output) if plan_id in plan_ids}
    locks, is_all = await lock_folder(git), True
    for names in steps.values():
        try:
            async with (
                locked(names.lock(locks), LOCK_TIMEOUT_SECONDS),
                locked(locks / FOLDER_LOCK, LOCK_TIMEOUT_SECONDS),
            ):
                await _remove_step(git, names)
                names.lock(locks).unlink(missing_ok=True)
        except GitError as error:
            is_all = False
            log.info("step_leftovers_kept", folder=str(git.folder), step=names.name, error=str(error))
    for plan_id in plan_ids if is_all else ():
        _mark_of(locks, plan_id).unlink(missing_ok=True)
    for folder in (*(trees(git.folder) / str(plan_id) for plan_id in plan_ids), trees(git.folder)):
        with suppress(OSError):  # It has other worktrees, or does not exist.
            folder.rmdir()
    return is_all


async def lock_folder(git: Git) -> Path:
    """The folder of the checkout's locks, which is created when it is needed."""
    folder = Path(await git.text("rev-parse", "--path-format=absolute", "--git-common-dir")) / "khala"
    await asyncio.to_thread(folder.mkdir, exist_ok=True)
    return folder


async def _remove_step(git: Git, names: StepNames) -> None:
    tree = names.tree(git.folder)
    if not await _has_changes(git, tree):
        await remove_tree(git, tree)
        tip = await git.commit(names.branch)
        if tip is not None and await _is_elsewhere(git, tip):
            await git.delete_ref(names.branch)
    for ref in names.states:
        await git.delete_ref(ref)


async def _has_changes(git: Git, tree: Path) -> bool:
    """Whether a worktree has changes that are not committed. One that is damaged may have some."""
    if not await asyncio.to_thread((tree / ".git").exists):
        return False
    try:
        return bool(await git.at(tree).changed_files())
    except GitError:
        return True


async def _is_elsewhere(git: Git, commit: str) -> bool:
    """Whether a branch that is not a step's has this commit."""
    _, output = await git.run("for-each-ref", f"--contains={commit}", "--format=%(refname)", HEADS)
    return any(not branch.startswith(BRANCHES) for branch in output.splitlines())
