"""Imports the modules of `KHALA_APP`, and finds their agents and tools."""

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import MappingProxyType, ModuleType

import msgspec

from khala.domain.agents import APP_PREFIX
from khala.sdk.agent import AppAgent
from khala.sdk.tool import AppTool

MAX_AGENTS = 100
MAX_TOOLS = 200


class AppError(RuntimeError):
    """A module of `KHALA_APP` cannot be used. The message names it, and `__cause__` has its own exception."""


class App(msgspec.Struct, frozen=True, kw_only=True):
    """The agents and tools of an application, by name. Agents' names are without their prefix."""

    agents: MappingProxyType[str, AppAgent] = MappingProxyType({})
    tools: MappingProxyType[str, AppTool] = MappingProxyType({})

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
    return App(agents=MappingProxyType(agents), tools=MappingProxyType(tools))


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # A module may raise anything.
        raise AppError(f"{name} could not be imported: {type(error).__name__}: {error}") from error
