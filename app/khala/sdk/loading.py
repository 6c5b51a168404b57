"""Imports the modules of `KHALA_APP`, once or again, and finds their agents and tools."""

import importlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType

from khala.domain.agents import APP_PREFIX
from khala.sdk.agent import AppAgent
from khala.sdk.tool import AppTool

MAX_AGENTS = 100
MAX_TOOLS = 200
KEPT_PACKAGES = frozenset({"khala", "khala_client", "__main__", "__mp_main__"})
"""Packages that are never imported anew, even if the project's folder is a checkout of Khala."""
IGNORED_FOLDERS = frozenset(
    {".git", ".khala", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", ".venv", "__pycache__", "build", "dist",
     "node_modules", "site-packages", "venv"}
)  # fmt: skip
"""Folders of a project that have no sources of its own."""


class AppError(RuntimeError):
    """A module of `KHALA_APP` cannot be used. The message names it, and `__cause__` has its own exception."""


class App:
    """The agents and tools of an application, by name. Agents' names are without their prefix.

    `replace` puts other ones in their place. A run keeps the function with which it was called.
    """

    def __init__(
        self, *, agents: Mapping[str, AppAgent] | None = None, tools: Mapping[str, AppTool] | None = None
    ) -> None:
        self.agents: Mapping[str, AppAgent] = MappingProxyType(dict(agents or {}))
        self.tools: Mapping[str, AppTool] = MappingProxyType(dict(tools or {}))

    def replace(self, other: "App") -> None:
        """Have the agents and tools of `other` from now on."""
        self.agents, self.tools = other.agents, other.tools

    def find(self, name: str, *, guest: bool) -> AppAgent | None:
        """The agent `app:NAME`; None if there is none, or if the caller is a guest who may not use it."""
        if not name.startswith(APP_PREFIX):
            return None
        found = self.agents.get(name.removeprefix(APP_PREFIX))
        return found if found is not None and (found.guests or not guest) else None


def load_app(modules: Iterable[str], *, folder: Path | None = None) -> App:
    """Import the modules, and collect the agents and tools among their attributes.

    Modules are also looked for in `folder`, by default in the working directory. Raises `AppError`.
    """
    names = list(modules)
    if not names:
        return App()
    place = str(folder or Path.cwd())
    if place not in sys.path:
        sys.path.insert(0, place)
    agents: dict[str, AppAgent] = {}
    tools: dict[str, AppTool] = {}
    for module in map(_import, names):
        for value in vars(module).values():
            if isinstance(value, AppAgent):
                if agents.setdefault(value.name, value) is not value:
                    raise AppError(f"{module.__name__}: there are two agents with the name {value.name}.")
            elif isinstance(value, AppTool) and tools.setdefault(value.spec.name, value) is not value:
                raise AppError(f"{module.__name__}: there are two tools with the name {value.spec.name}.")
    if len(agents) > MAX_AGENTS or len(tools) > MAX_TOOLS:
        raise AppError(f"At most {MAX_AGENTS} agents and {MAX_TOOLS} tools are allowed.")
    return App(agents=agents, tools=tools)


def reload_app(modules: Iterable[str], *, folder: Path) -> App:
    """Import the modules anew, and with them all modules that belong to the project in `folder`.

    If that fails, the modules that were imported before stay imported. Raises `AppError`.
    """
    names = list(modules)
    before = _project_modules(names, folder)
    for name in before:
        del sys.modules[name]
    importlib.invalidate_caches()
    try:
        return load_app(names, folder=folder)
    except AppError:
        for name in _project_modules(names, folder):
            del sys.modules[name]
        sys.modules.update(before)
        raise


def _project_modules(names: Iterable[str], folder: Path) -> dict[str, ModuleType]:
    """The imported modules of the packages of `names`, and those whose file is in the project's folder."""
    packages = {name.partition(".")[0] for name in names}
    return {
        name: module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] not in KEPT_PACKAGES
        and (name.partition(".")[0] in packages or _is_source_in(folder, getattr(module, "__file__", None)))
    }


def _is_source_in(folder: Path, file: str | None) -> bool:
    if file is None or not Path(file).is_relative_to(folder):
        return False
    return IGNORED_FOLDERS.isdisjoint(Path(file).relative_to(folder).parts)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # A module may raise anything.
        raise AppError(f"{name} could not be imported: {type(error).__name__}: {error}") from error
