"""Imports the modules of `KHALA_APP`, once or again, and finds their agents, tools, prompts and resources."""

import importlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TypeVar

from khala.domain.agents import APP_PREFIX
from khala.sdk.agent import AppAgent
from khala.sdk.prompt import AppPrompt
from khala.sdk.resource import AppResource
from khala.sdk.tool import AppTool

T = TypeVar("T")

MAX_AGENTS = 100
MAX_TOOLS = 200
MAX_PROMPTS = 100
MAX_RESOURCES = 200
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
    """The agents, tools, prompts and resources of an application, by name. Agents' names are without their prefix.

    `replace` puts other ones in their place. A run keeps the function with which it was called.
    """

    def __init__(
        self,
        *,
        agents: Mapping[str, AppAgent] | None = None,
        tools: Mapping[str, AppTool] | None = None,
        prompts: Mapping[str, AppPrompt] | None = None,
        resources: Mapping[str, AppResource] | None = None,
    ) -> None:
        self.agents: Mapping[str, AppAgent] = MappingProxyType(dict(agents or {}))
        self.tools: Mapping[str, AppTool] = MappingProxyType(dict(tools or {}))
        self.prompts: Mapping[str, AppPrompt] = MappingProxyType(dict(prompts or {}))
        self.resources: Mapping[str, AppResource] = MappingProxyType(dict(resources or {}))

    def replace(self, other: "App") -> None:
        """Have the agents, tools, prompts and resources of `other` from now on."""
        self.agents, self.tools = other.agents, other.tools
        self.prompts, self.resources = other.prompts, other.resources

    def find(self, name: str, *, guest: bool) -> AppAgent | None:
        """The agent `app:NAME`; None if there is none, or if the caller is a guest who may not use it."""
        if not name.startswith(APP_PREFIX):
            return None
        found = self.agents.get(name.removeprefix(APP_PREFIX))
        return found if found is not None and (found.guests or not guest) else None


def load_app(modules: Iterable[str], *, folder: Path | None = None) -> App:
    """Import the modules, and collect the agents, tools, prompts and resources among their attributes.

    Modules are also looked for in `folder`, by default in the working directory. Raises `AppError`.
    """
    names = list(modules)
    if not names:
        return App()
    place = str(folder or Path.cwd())
    if place not in sys.path:
        sys.path.insert(0, place)
    found = _Found()
    for module in map(_import, names):
        for value in vars(module).values():
            found.add(module.__name__, value)
    return found.app()


class _Found:
    """The objects of the modules, by kind and name."""

    def __init__(self) -> None:
        self._agents: dict[str, AppAgent] = {}
        self._tools: dict[str, AppTool] = {}
        self._prompts: dict[str, AppPrompt] = {}
        self._resources: dict[str, AppResource] = {}

    def add(self, module: str, value: object) -> None:
        """Add the value if it is of the application. Raises `AppError` if its name is taken."""
        match value:
            case AppAgent():
                _add(self._agents, value.name, value, f"{module}: there are two agents")
            case AppTool():
                _add(self._tools, value.spec.name, value, f"{module}: there are two tools")
            case AppPrompt():
                _add(self._prompts, value.name, value, f"{module}: there are two prompts")
            case AppResource():
                _add(self._resources, value.name, value, f"{module}: there are two resources")

    def app(self) -> App:
        """The application. Raises `AppError` if it has too many objects, or two resources with one URI."""
        if len(self._agents) > MAX_AGENTS or len(self._tools) > MAX_TOOLS:
            raise AppError(f"At most {MAX_AGENTS} agents and {MAX_TOOLS} tools are allowed.")
        if len(self._prompts) > MAX_PROMPTS or len(self._resources) > MAX_RESOURCES:
            raise AppError(f"At most {MAX_PROMPTS} prompts and {MAX_RESOURCES} resources are allowed.")
        uris = [one.uri.text for one in self._resources.values()]
        if twice := sorted(uri for uri in set(uris) if uris.count(uri) > 1):
            raise AppError(f"There are two resources with the URI {twice[0]}.")
        return App(agents=self._agents, tools=self._tools, prompts=self._prompts, resources=self._resources)


def _add(kind: dict[str, T], name: str, value: T, problem: str) -> None:
    if kind.setdefault(name, value) is not value:
        raise AppError(f"{problem} with the name {name}.")


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
