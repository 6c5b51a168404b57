"""The source of settings that reads environment variables."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from khala.settings.fields import SettingDefinition


class EnvironmentSource(PydanticBaseSettingsSource):
    """Reads settings from a mapping of variables, by their definitions.

    A variable that is set to nothing stands for the default, whatever weaker sources have.
    """

    def __init__(
        self, settings: type[BaseSettings], environment: Mapping[str, str], definitions: Sequence[SettingDefinition]
    ) -> None:
        super().__init__(settings)
        self._environment = environment
        self._definitions = definitions

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Not used: `__call__` reads all settings at once."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        """The settings that have a variable, by group."""
        values: dict[str, Any] = {}
        for definition in self._definitions:
            name = set_variable(definition, self._environment)
            if name is not None:
                *groups, field = definition.path
                place = values
                for group in groups:
                    place = place.setdefault(group, {})
                place[field] = _value(definition, self._environment[name])
        return values


def set_variable(definition: SettingDefinition, environment: Mapping[str, str]) -> str | None:
    """The name of the variable that sets this: the first one that is not blank, else the first one that is there."""
    present = [name for name in definition.variables if name in environment]
    return next((name for name in present if environment[name].strip()), present[0] if present else None)


def _value(definition: SettingDefinition, given: str) -> str | None:
    if definition.blank_is_value:
        return given
    return given.strip() or None
