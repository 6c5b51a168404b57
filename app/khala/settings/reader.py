"""Reads the settings from the environment, `.env` and `khala.toml`, and says of a bad value what would be right."""

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from khala.settings.fields import SettingDefinition, SettingError
from khala.settings.settings import SettingLayers, Settings, definitions
from khala.settings.sources import set_variable

DOTENV_FILE = ".env"
TOML_FILE = "khala.toml"


def load(folder: Path | None = None) -> Settings:
    """Read the settings of this process: from its environment, then `.env`, then `khala.toml` in the folder.

    `folder` is the working directory by default. Variables of `.env` that the environment lacks are added to the
    environment, for libraries that read variables of their own, such as `AWS_REGION`. Raises `SettingError`.
    """
    folder = folder or Path()
    for name, value in _read_dotenv(folder / DOTENV_FILE).items():
        os.environ.setdefault(name, value)
    toml_file = folder / TOML_FILE
    return _read(SettingLayers(os.environ, toml_file if toml_file.is_file() else None))


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings from these variables only. Raises `SettingError`."""
    return _read(SettingLayers(environment))


def _read_dotenv(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    from dotenv import dotenv_values

    try:
        return {name: value for name, value in dotenv_values(path).items() if value is not None}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} cannot be read: {error}.") from error


def _read(layers: SettingLayers) -> Settings:
    try:
        settings = Settings(layers)
    except ValidationError as error:
        raise SettingError(_message(error.errors()[0], layers)) from error
    except (OSError, TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{layers.toml_file} cannot be read: {error}.") from error
    _check_derived(settings)
    return settings


def _check_derived(settings: Settings) -> None:
    """Have what is derived from settings fail now, and not in the midst of the start."""
    try:
        settings.traces  # noqa: B018
    except ValueError as error:
        raise SettingError(str(error)) from error
    try:
        settings.mcp  # noqa: B018
    except ValueError as error:
        raise SettingError(f"KHALA_MCP_CONFIG: {error}") from error
    try:
        settings.commands  # noqa: B018
    except ValueError as error:
        raise SettingError(f"KHALA_COMMANDS: {error}") from error
    try:
        if settings.accounts.jwt is not None:
            settings.identity  # noqa: B018
    except ValueError as error:
        raise SettingError(f"KHALA_JWT: {error}") from error


def _message(error: ErrorDetails, layers: SettingLayers) -> str:
    """One sentence about the error; it begins with the setting's name."""
    path = tuple(map(str, error["loc"]))
    definition = next((known for known in definitions() if known.path == path[: len(known.path)]), None)
    if error["type"] == "extra_forbidden":
        return _unknown(path, layers)
    if definition is None:
        # A group's own check names the settings in its sentence.
        reason = _reason(error)
        return reason if reason[0].isupper() else f"{'.'.join(path)} in {layers.toml_file} {reason}"
    name, problem = _name(definition, layers), _problem(error, definition)
    return f"{name}: {problem}" if problem[0].isupper() else f"{name} {problem}"


def _unknown(path: tuple[str, ...], layers: SettingLayers) -> str:
    known = {".".join(definition.path) for definition in definitions()}
    groups = {definition.path[0] for definition in definitions()}
    name = ".".join(path)
    close = get_close_matches(name, known if len(path) > 1 else groups, n=1)
    hint = f": did you mean {close[0]}?" if close else "; docs/configuration.md lists all settings."
    return f"{layers.toml_file}: there is no setting {name}{hint}"


def _name(definition: SettingDefinition, layers: SettingLayers) -> str:
    variable = set_variable(definition, layers.environment)
    if variable is not None or layers.toml_file is None:
        return variable or definition.variables[0]
    return f"{'.'.join(definition.path)} in {layers.toml_file}"


def _problem(error: ErrorDetails, definition: SettingDefinition) -> str:
    if error["type"] == "literal_error":
        choices = str(error["ctx"]["expected"]).replace("'", "").replace(" or ", ", ")
        return f"must be one of {choices}, not {error['input']!r}."
    if error["type"] in ("greater_than_equal", "less_than_equal", "finite_number", "int_type"):
        bounds = f"{_plain(definition.minimum)} and {_plain(definition.maximum)}"
        return f"must be between {bounds}, not {error['input']}."
    return _reason(error)


def _plain(number: float | None) -> str:
    return f"{number or 0:.12g}"


def _reason(error: ErrorDetails) -> str:
    """The sentence of our own validators, or the library's."""
    context: dict[str, Any] = error.get("ctx") or {}
    return str(context["error"]) if "error" in context else f"{error['msg']}."
