"""Runs git in a folder of the operator: bounded in time and output, without prompts, hooks and network."""

import asyncio
import os
import unicodedata
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM

from khala.tools.commands.process import exchange, uninterrupted

GIT_TIMEOUT_SECONDS = 120.0
"""Time of one call of git."""
MAX_OUTPUT_BYTES = 1 << 18
"""Bytes of each output of git that are kept."""
KILL_AFTER_SECONDS = 5.0
MAX_NAMED_FILES = 10
MAX_NAME_CHARACTERS = 100
OVERRIDES = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "submodule.recurse": "false",
    "protocol.allow": "never",
    "i18n.commitEncoding": "UTF-8",
    "log.showSignature": "false",
    "merge.verifySignatures": "false",
    "status.submoduleSummary": "false",
}
"""Settings that the repository's own can't change. So git runs no program, and reaches no other repository."""
PROGRAMS = r"^(filter\..*\.(clean|smudge|process)|merge\..*\.driver)$"
"""Settings of a repository that name programs, which git runs when it reads, writes or merges files."""


class GitError(Exception):
    """Git can't do what a step needs. The message is for people."""


class GitConflictError(GitError):
    """The changes of a step conflict with others. The message names the files."""


class Git:
    """Git in one folder. `author` is `Name <address>`."""

    def __init__(self, folder: Path, author: str) -> None:
        self.folder = folder
        self._author = author
        name, _, address = author.rstrip(">").partition(" <")
        self._environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_EDITOR": "false",
            "GIT_ALLOW_PROTOCOL": "none",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_LITERAL_PATHSPECS": "1",
            "GIT_CEILING_DIRECTORIES": str(folder.parent),
        } | {f"GIT_{role}_{field}": value for role in ("AUTHOR", "COMMITTER")
             for field, value in (("NAME", name), ("EMAIL", address))}  # fmt: skip

    def at(self, folder: Path) -> "Git":
        """Git of the same author in another folder."""
        return Git(folder, self._author)

    async def run(self, *arguments: str, codes: Sequence[int] = (0,), index: Path | None = None) -> tuple[int, str]:
        """The exit status and the standard output. Raises `GitError` for a status that is not one of `codes`.

        `index` replaces the index of the folder.
        """
        environment = self._environment | ({} if index is None else {"GIT_INDEX_FILE": str(index)})
        settings = [word for name, value in OVERRIDES.items() for word in ("-c", f"{name}={value}")]
        stdout, stderr = bytearray(), bytearray()
        try:
            async with _started(["git", *settings, *arguments], environment, self.folder) as process:
                async with asyncio.timeout(GIT_TIMEOUT_SECONDS):
                    code = await exchange(process, None, _Kept(stdout), _Kept(stderr))
        except TimeoutError as error:
            raise GitError(f"git {arguments[0]} took more than {GIT_TIMEOUT_SECONDS:g} s.") from error
        except OSError as error:
            raise GitError(f"git can't be started in {self.folder}: {error.strerror}.") from error
        if code not in codes:
            raise GitError(f"git {arguments[0]} failed: {printable(stderr.decode(errors='replace'), 500)}")
        return code, stdout.decode(errors="surrogateescape")

    async def text(self, *arguments: str) -> str:
        """The standard output without the line break at its end."""
        return (await self.run(*arguments))[1].removesuffix("\n")

    async def commit(self, name: str) -> str | None:
        """The id of the commit with this name, or None."""
        code, output = await self.run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", codes=(0, 1))
        return output.strip() if code == 0 else None

    async def branch(self) -> str:
        """The branch that is checked out. Raises `GitError` if there is none."""
        code, output = await self.run("symbolic-ref", "--quiet", "HEAD", codes=(0, 1))
        if code:
            raise GitError(f"No branch is checked out in {self.folder}.")
        return output.strip()

    async def contains(self, descendant: str, ancestor: str) -> bool:
        """Whether the commit `ancestor` is in the history of `descendant`."""
        code, _ = await self.run("merge-base", "--is-ancestor", ancestor, descendant, codes=(0, 1))
        return code == 0

    async def names(self, *arguments: str, index: Path | None = None) -> list[str]:
        """The names that git lists with `-z`. Raises `GitError` if there are too many."""
        _, output = await self.run(*arguments, index=index)
        if len(output.encode(errors="surrogateescape")) >= MAX_OUTPUT_BYTES:
            raise GitError(f"git {arguments[0]} lists too many files in {self.folder}.")
        return [name for name in output.split("\0") if name]

    async def changed_files(self) -> list[str]:
        """The files that differ from the last commit, also new ones."""
        options = ("--porcelain", "-z", "--untracked-files=all", "--no-renames")
        _, output = await self.run("status", *options)
        return [entry[3:] for entry in output.split("\0") if entry]

    async def unmerged_files(self) -> list[str]:
        """The files with conflicts of a merge that is under way."""
        return await self.names("diff", "--name-only", "--diff-filter=U", "-z", "--no-ext-diff", "--no-textconv")

    async def delete_ref(self, ref: str) -> None:
        """Delete the ref, if it exists."""
        await self.run("update-ref", "-d", ref)

    async def refuse_programs(self) -> None:
        """Raise `GitError` if the repository's settings name filters or merge drivers."""
        code, output = await self.run("config", "--name-only", "-z", "--get-regexp", PROGRAMS, codes=(0, 1))
        if code == 0:
            names = list_files(output.rstrip("\0").split("\0"))
            raise GitError(f"The settings of {self.folder} name programs, which the operator does not allow: {names}.")


@asynccontextmanager
async def _started(argv: Sequence[str], environment: Mapping[str, str], folder: Path) -> AsyncIterator[Process]:
    """A running git, without a supervisor, which takes longer to start than git takes. It is ended with the block.

    If Khala is killed, git goes on to its end, so that it leaves no lock. Raises `OSError`.
    """
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=environment, cwd=folder, start_new_session=True
    )
    try:
        yield process
    finally:
        await uninterrupted(_end(process))


async def _end(process: Process) -> None:
    """Terminate git and what it started, and kill them if they do not end in time."""
    for number, seconds in ((SIGTERM, KILL_AFTER_SECONDS), (SIGKILL, None)):
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await process.wait()


class _Kept:
    """Keeps the beginning of an output."""

    def __init__(self, kept: bytearray) -> None:
        self._kept = kept

    async def __call__(self, data: bytes) -> None:
        self._kept += data[: MAX_OUTPUT_BYTES - len(self._kept)]


def printable(text: str, most: int) -> str:
    """The text on one line, without control characters, of at most so many characters."""
    valid = text.encode(errors="replace").decode()
    words = " ".join("".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in valid[: 4 * most]).split())
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"


def list_files(names: Sequence[str]) -> str:
    """The first of these names for a message, and how many more there are."""
    shown = ", ".join(printable(name, MAX_NAME_CHARACTERS) for name in names[:MAX_NAMED_FILES])
    return shown if len(names) <= MAX_NAMED_FILES else f"{shown} and {len(names) - MAX_NAMED_FILES} more"
