"""Imports the modules of `KHALA_APP` again when a file of the project changes.

A run that is being executed keeps the function with which it was called. The next run gets the new one.
"""

import asyncio
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from watchfiles import Change, DefaultFilter, awatch

from khala.sdk.loading import IGNORED_FOLDERS, App, AppError, load_app, reload_app
from khala.tools.tool_registry import ToolRegistry

SLOW_IMPORT_SECONDS = 10.0
"""Time after which an import that has not ended is reported."""
DEBOUNCE_MS = 300
"""Time in which changes are collected: an editor or a checkout changes several files."""
WATCH_TIMEOUT_MS = 300
"""Time for which the watching thread blocks. A cancellation waits for it."""
SourceVersions: TypeAlias = dict[Path, tuple[int, int]]
MAX_FOLDERS = 2_000
"""Folders that are watched. Each takes a watch of the system."""


class AppReloader:
    """The application of a project: loads it, and loads it again after each change.

    `report` gets a line for people about each load.
    """

    def __init__(self, modules: Sequence[str], folder: Path, report: Callable[[str], None]) -> None:
        self.app = App()
        self._modules = tuple(modules)
        self._folder = folder
        self._report = report
        self._known: SourceVersions = {}

    async def load(self) -> None:
        """Load the application. Without one that can be imported, there are no agents until a file changes."""
        self._known = await asyncio.to_thread(source_versions, self._folder)
        try:
            self.app.replace(await self._import(lambda: load_app(self._modules, folder=self._folder)))
        except AppError as error:
            self._report(f"{explain(error, self._folder)} There are no agents until this is corrected.")

    async def run(self, registry: ToolRegistry) -> None:
        """Watch the project, and replace the application's agents and tools after each change, until cancelled."""
        async for changed in watch(self._folder, self._known):
            await self._reload(registry, changed)

    async def _reload(self, registry: ToolRegistry, changed: Sequence[Path]) -> None:
        names = ", ".join(str(path.relative_to(self._folder)) for path in changed[:3])
        try:
            new = await self._import(lambda: reload_app(self._modules, folder=self._folder))
            registry.replace_app_tools(new.tools)
        except (AppError, RuntimeError) as error:
            self._report(f"{explain(error, self._folder)} The code from before keeps running.")
            return
        self.app.replace(new)
        self._report(f"{names} changed. Loaded {described(new)}.")

    async def _import(self, load: Callable[[], App]) -> App:
        """The result of `load`, which a thread calls that does not keep the process from ending."""
        importing = asyncio.ensure_future(_in_daemon_thread(load))
        done, _ = await asyncio.wait({importing}, timeout=SLOW_IMPORT_SECONDS)
        if not done:
            self._report(f"The import of {', '.join(self._modules)} takes longer than {SLOW_IMPORT_SECONDS:g} s.")
        return await importing


def _in_daemon_thread(load: Callable[[], App]) -> "asyncio.Future[App]":
    loop = asyncio.get_running_loop()
    future: asyncio.Future[App] = loop.create_future()

    def settle(result: App | Exception) -> None:
        if future.cancelled():
            return
        if isinstance(result, App):
            future.set_result(result)
        else:
            future.set_exception(result)

    def call() -> None:
        result: App | Exception
        try:
            result = load()
        except Exception as error:  # noqa: BLE001  # raised where the future is awaited
            result = error
        loop.call_soon_threadsafe(settle, result)

    threading.Thread(target=call, name="khala-import", daemon=True).start()
    return future


def described(app: App) -> str:
    """The agents and tools in a few words, and the prompts and resources if there are any."""
    agents = ", ".join(one.agent.name for one in app.agents.values()) or "none"
    tools = ", ".join(app.tools) or "none"
    prompts = f"; prompts: {', '.join(app.prompts)}" if app.prompts else ""
    resources = f"; resources: {', '.join(app.resources)}" if app.resources else ""
    return f"agents: {agents}; tools: {tools}{prompts}{resources}"


def explain(error: Exception, folder: Path) -> str:
    """The cause of an error as `file:line: what happened`, where the file is the last one of the project."""
    cause = error.__cause__ if isinstance(error, AppError) else None
    if cause is None:
        return f"{error}"
    message = cause.msg if isinstance(cause, SyntaxError) else str(cause)
    return f"{_place(cause, folder)}{type(cause).__name__}: {message.rstrip('.')}."


def _place(cause: BaseException, folder: Path) -> str:
    if isinstance(cause, SyntaxError) and cause.filename is not None:
        places = [(cause.filename, cause.lineno)]
    else:
        places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(cause.__traceback__)]
    own = [(Path(file), line) for file, line in places if Path(file).is_relative_to(folder)]
    if not own:
        return ""
    file, line = own[-1]
    return f"{file.relative_to(folder)}:{line}: "


async def watch(folder: Path, known: SourceVersions) -> AsyncIterator[list[Path]]:
    """The changed sources of each batch of changes below the folder, for ever. `known`: those before the first change.

    A change before the system watches a folder is found by comparing all sources once after the watch has begun.
    """
    while True:
        is_compared = False
        async for changes in awatch(
            *await asyncio.to_thread(watched_folders, folder),
            watch_filter=SourceFilter(),
            recursive=False,
            debounce=DEBOUNCE_MS,
            rust_timeout=WATCH_TIMEOUT_MS,
            yield_on_timeout=True,
            raise_interrupt=False,
        ):
            if not changes and is_compared:
                continue
            is_compared = is_compared or not changes
            before, known = known, await asyncio.to_thread(source_versions, folder)
            changed = sorted(path for path, _ in set(before.items()) ^ set(known.items()))
            if changed:
                yield list(dict.fromkeys(changed))
            if any(not path.endswith(".py") for _, path in changes):
                break  # A new folder, which is watched from now on, too.


def source_versions(folder: Path) -> SourceVersions:
    """The sources of the project, each with its time of change and size."""
    found: SourceVersions = {}
    for one in watched_folders(folder):
        for path in one.glob("*.py"):
            with suppress(FileNotFoundError):  # It was deleted meanwhile.
                status = path.stat()
                found[path] = status.st_mtime_ns, status.st_size
    return found


def watched_folders(folder: Path) -> list[Path]:
    """The folder and those below it that have the project's own files."""
    found: list[Path] = []
    for one in _folders(folder):
        if len(found) == MAX_FOLDERS:
            break
        found.append(one)
    return found


def _folders(folder: Path) -> Iterator[Path]:
    yield folder
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink() and not _is_ignored(path.name):
            yield from _folders(path)


def _is_ignored(name: str) -> bool:
    return name in IGNORED_FOLDERS or name.endswith(".egg-info")


class SourceFilter(DefaultFilter):
    """Lets changes of Python sources and new folders pass."""

    def __call__(self, change: Change, path: str) -> bool:
        """Whether the change may change the application."""
        if _is_ignored(Path(path).name) or not super().__call__(change, path):
            return False
        return path.endswith(".py") or (change is Change.added and Path(path).is_dir())


def keep_bytecode_unwritten() -> None:
    """Write no compiled files: one is not renewed if a source changes within a second and keeps its size."""
    sys.dont_write_bytecode = True
