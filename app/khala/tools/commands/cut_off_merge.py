"""Moves the branch of a folder forward, and undoes that if it was cut off: by a crash, or a full disk.

Before git changes the files, the ref `refs/khala/merging` gets the commit to move to. It is deleted afterwards. If it
is found later, the files that git had already changed get their earlier content, so that the merge can be repeated.
Other files are not touched.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from khala.tools.commands.git import MAX_OUTPUT_BYTES, Git, GitError, list_files
from khala.tools.commands.step_refs import MERGING

MAX_FILES_OF_CALL = 200
"""Files that one call of git names."""


async def move_forward(git: Git, head: str, target: str) -> None:
    """Move the branch of the folder from `head` forward to `target`, with its files.

    The caller holds the folder's lock. Raises `GitError`, also if changes that are not committed are in the way.
    """
    merged = await _merged_files(git, head, target)
    if names := [name for name in await git.changed_files() if name in merged]:
        raise GitError(f"{git.folder} has changes that are not committed, in files to merge: {list_files(names)}.")
    await git.run("update-ref", MERGING, target)
    try:
        await git.run("merge", "--ff-only", "--quiet", "--no-autostash", target)
    except GitError:
        await undo(git)
        raise
    await git.delete_ref(MERGING)


async def undo(git: Git) -> None:
    """Undo a move that was cut off, if there is one. The caller holds the folder's lock.

    Raises `GitError` if a file of it was changed afterwards.
    """
    target, head = await git.commit(MERGING), await git.commit("HEAD")
    if target is None:
        return
    assert head is not None
    if not await git.contains(head, target):
        await _restore(git, head, target)
    await git.delete_ref(MERGING)


async def _merged_files(git: Git, head: str, target: str) -> set[str]:
    return set(await git.names("diff", "--name-only", "-z", "--no-renames", "--no-ext-diff", head, target))


async def _restore(git: Git, head: str, target: str) -> None:
    merged = await _merged_files(git, head, target)
    changed = [name for name in await git.changed_files() if name in merged]
    unlike = await _unlike(git, target)
    foreign = [name for name in changed if name in unlike and not await _is_cut_off(git, target, name)]
    if foreign:
        raise GitError(
            f"A merge in {git.folder} was cut off, and files of it were changed since: {list_files(foreign)}. Commit"
            f" them or put them away, and delete the ref {MERGING}."
        )
    for start in range(0, len(changed), MAX_FILES_OF_CALL):
        names = changed[start : start + MAX_FILES_OF_CALL]
        before = await git.names("ls-tree", "-r", "-z", "--name-only", head, "--", *names)
        if added := [name for name in names if name not in before]:
            await git.run("rm", "--cached", "--quiet", "--force", "--ignore-unmatch", "--", *added)
            await asyncio.to_thread(_remove, git.folder, added)
        if before:
            await git.run("checkout", "--quiet", head, "--", *before)


async def _unlike(git: Git, commit: str) -> set[str]:
    """The files of the folder that differ from those of this commit, or are missing."""
    with tempfile.TemporaryDirectory(prefix="khala-index-") as temporary:
        index = Path(temporary) / "index"
        await git.run("read-tree", commit, index=index)
        await git.run("update-index", "-q", "--refresh", codes=(0, 1), index=index)
        return set(await git.names("diff-files", "--name-only", "-z", index=index))


async def _is_cut_off(git: Git, commit: str, name: str) -> bool:
    """Whether this file is missing, or has only the beginning of what it has in the commit."""
    code, whole = await git.run("cat-file", "blob", f"{commit}:{name}", codes=(0, 128))
    content = whole.encode(errors="surrogateescape") if code == 0 else b""
    return await asyncio.to_thread(_begins, content, git.folder / name)


def _begins(content: bytes, path: Path) -> bool:
    """Whether the content begins with that of the file, or there is no file."""
    if path.is_symlink() or path.is_dir():
        return False
    if not path.exists():
        return True
    return path.stat().st_size < MAX_OUTPUT_BYTES and content.startswith(path.read_bytes())


def _remove(root: Path, names: Sequence[str]) -> None:
    """Remove files, and the folders that are empty then."""
    for name in names:
        path = root / name
        path.unlink(missing_ok=True)
        for folder in path.parents:
            if folder == root or not folder.is_dir() or any(folder.iterdir()):
                break
            folder.rmdir()
