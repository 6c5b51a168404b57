"""The configuration of command agents, from one JSON file. Error messages name the place in the file."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from khala.domain.agents import (
    COMMAND_PREFIX,
    Agent,
    AgentDescription,
    AgentInstructions,
    AgentTitle,
)
from khala.tools.config_files import ConfigFileError, convert, read_json, require_object

MAX_COMMANDS = 50
COMMAND_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESERVED_VARIABLES = ("KHALA_", "DATABASE_")
"""Beginnings of the names of Khala's own settings, which no command gets."""
INHERITED = ("PATH", "HOME")
"""Variables of Khala's environment that every command gets, unless it is sandboxed."""
PROMPT = "{prompt}"
"""Stands for the prompt in an argument. Without it, the prompt is the command's standard input."""
THREAD = "{thread}"
"""Stands for the id of the thread in the path of a folder."""
GIT_AUTHOR = r"^[^<>\x00-\x1f]*[^<>\x00-\x20.,:;\"\\'] <[^<>\x00-\x20]+>$"
"""`Name <address>`."""
MAX_ARGUMENT_PROMPT_BYTES = 120_000
"""Bytes of a prompt in an argument. Linux allows 131,071 bytes in one argument."""
MAX_STDIN_PROMPT_BYTES = 1_000_000
"""Bytes of a prompt in standard input."""

Word: TypeAlias = Annotated[str, Meta(max_length=4096)]


class Command(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A command agent.

    `env` names variables of Khala's environment that the command gets. `folder` is its working folder, by default a
    new one for each run. A sandboxed command has no network and no folder, and reads only the system and `files`.
    `timeout` bounds one run, in seconds; `kill_after` is the time between SIGTERM and SIGKILL. `concurrency` bounds its
    processes of one executor. `guests` lets people without an account use it. `git` lets plans commit its work in
    `folder`, as `git_author`; with `git_filters`, the programs run that the repository's settings name.
    """

    name: str = ""
    title: AgentTitle = ""
    description: AgentDescription = ""
    instructions: AgentInstructions = ""
    argv: Annotated[tuple[Word, ...], Meta(min_length=1, max_length=200)]
    env: Annotated[tuple[str, ...], Meta(max_length=100)] = ()
    folder: Word | None = None
    sandbox: bool = False
    files: Annotated[tuple[Word, ...], Meta(max_length=50)] = ()
    timeout: Annotated[float, Meta(gt=0, le=86_400)] = 1_800.0
    kill_after: Annotated[float, Meta(ge=0, le=60)] = 5.0
    concurrency: Annotated[int, Meta(ge=1, le=1_000)] = 4
    guests: bool = False
    disabled: bool = False
    git: bool = False
    git_author: Annotated[str, Meta(max_length=200, pattern=GIT_AUTHOR)] = "Khala <khala@localhost>"
    git_filters: bool = False
    variables: dict[str, str] = {}
    """The variables that `env` names, with their values. Not in the file."""

    @property
    def takes_argument(self) -> bool:
        """Whether the prompt is in an argument."""
        return any(PROMPT in word for word in self.argv)

    @property
    def max_prompt_bytes(self) -> int:
        """The most bytes of a prompt."""
        return MAX_ARGUMENT_PROMPT_BYTES if self.takes_argument else MAX_STDIN_PROMPT_BYTES

    @property
    def agent(self) -> Agent:
        """The agent by which people choose the command."""
        return Agent(
            name=COMMAND_PREFIX + self.name,
            title=self.title or self.name,
            description=self.description,
            instructions=self.instructions,
            tools=(),
            examples=(),
            version=1,
            visibility="public",
        )


def find_command(commands: Mapping[str, Command], agent: str, *, guest: bool) -> Command | None:
    """The command of this agent, None if there is none, or if the caller is a guest who may not use it."""
    if not agent.startswith(COMMAND_PREFIX):
        return None
    command = commands.get(agent.removeprefix(COMMAND_PREFIX))
    return command if command is not None and (command.guests or not guest) else None


def read_commands(path: Path | None, env: Mapping[str, str] = os.environ) -> dict[str, Command]:
    """The enabled commands by name, in the order of the file. Without a path there are none.

    Raises `ConfigFileError`. `env` has the variables that commands may get.
    """
    if path is None:
        return {}
    try:
        return _parse(require_object(read_json(path), "the file"), env)
    except ConfigFileError as error:
        raise ConfigFileError(f"{path}: {error}") from error


def _parse(content: dict[str, Any], env: Mapping[str, str]) -> dict[str, Command]:
    if unknown := sorted(set(content) - {"commands"}):
        raise ConfigFileError(f"{unknown[0]}: unknown setting. Use commands.")
    values = require_object(content.get("commands", {}), "commands")
    if len(values) > MAX_COMMANDS:
        raise ConfigFileError(f"commands: at most {MAX_COMMANDS} commands are allowed.")
    parsed = [_command(name, value, env) for name, value in values.items()]
    return {command.name: command for command in parsed if not command.disabled}


def _command(name: str, value: Any, env: Mapping[str, str]) -> Command:
    place = f"commands.{name}"
    if not COMMAND_NAME.fullmatch(name):
        raise ConfigFileError(f"{place}: a name has 1 to 40 lower-case letters, digits and dashes.")
    for field in ("name", "variables"):
        if field in require_object(value, place):
            raise ConfigFileError(f"{place}.{field}: unknown setting.")
    command = convert(value, Command, place)
    if command.disabled:
        return msgspec.structs.replace(command, name=name)
    _check(command, place)
    return msgspec.structs.replace(command, name=name, variables=_variables(command, place, env))


def _check(command: Command, place: str) -> None:
    if not command.argv[0] or PROMPT in command.argv[0]:
        raise ConfigFileError(f"{place}.argv[0]: must be the program.")
    if any("\0" in word for word in command.argv):
        raise ConfigFileError(f"{place}.argv: NUL characters are not allowed.")
    if sum(word.count(PROMPT) for word in command.argv) > 1:
        raise ConfigFileError(f"{place}.argv: {PROMPT} may occur once.")
    if command.sandbox and command.folder is not None:
        raise ConfigFileError(f"{place}.folder: a sandboxed command has no folder.")
    if command.git and command.folder is None:
        raise ConfigFileError(f"{place}.git: only a command with a folder uses Git.")
    if command.files and not command.sandbox:
        raise ConfigFileError(f"{place}.files: only a sandboxed command has files.")
    _check_paths(command, place)


def _check_paths(command: Command, place: str) -> None:
    named = {f"{place}.files[{index}]": path for index, path in enumerate(command.files)}
    for where, path in (named | ({} if command.folder is None else {f"{place}.folder": command.folder})).items():
        if not path.startswith("/") or "\0" in path:
            raise ConfigFileError(f"{where}: must be an absolute path.")
    for where, path in named.items():
        if not Path(path).exists():
            raise ConfigFileError(f"{where}: the file or folder does not exist.")
    if command.folder is not None and THREAD not in command.folder and not Path(command.folder).is_dir():
        raise ConfigFileError(f"{place}.folder: the folder does not exist.")


def _variables(command: Command, place: str, env: Mapping[str, str]) -> dict[str, str]:
    for index, name in enumerate(command.env):
        if not VARIABLE_NAME.fullmatch(name):
            raise ConfigFileError(f"{place}.env[{index}]: not the name of an environment variable.")
        if name.startswith(RESERVED_VARIABLES):
            raise ConfigFileError(f"{place}.env[{index}]: {name} is a setting of Khala, which no command gets.")
        if name not in env:
            raise ConfigFileError(f"{place}.env[{index}]: the variable {name} is not set.")
    return {name: env[name] for name in command.env}
