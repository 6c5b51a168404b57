"""Describes a function of an application by its type hints and its docstring: its arguments, and what it does."""

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import griffe
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model

MAX_DESCRIPTION_CHARACTERS = 2_000
MAX_TIMEOUT_SECONDS = 3_600.0
MAX_PROBLEMS = 5
"""Invalid arguments that the caller is told of."""
_QUIET: Any = {style: {"warnings": False} for style in ("google", "numpy", "sphinx")}
"""Options of the parser, which else warns of parameters that have their type in the signature."""


def arguments_of(
    function: Callable[..., Any], name: str, described: dict[str, str], context_type: type
) -> tuple[type[BaseModel], str | None]:
    """The arguments as a model, and the name of the parameter for the context, which has the type `context_type`.

    `described` has the descriptions of parameters. Raises `TypeError` for a parameter that cannot be an argument.
    """
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    context = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{name}: {parameter} cannot be an argument: it has no name of its own.")
        if parameter.name not in hints:
            raise TypeError(f"{name}: the parameter {parameter.name} needs a type hint.")
        if hints[parameter.name] is context_type:
            context = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], Field(default, description=described.get(parameter.name)))
    try:
        return create_model(name, __config__=ConfigDict(extra="forbid"), **fields), context
    except (PydanticUserError, NameError) as error:
        raise TypeError(f"{name}: a parameter cannot be described as JSON: {error}") from error


def schema_of(arguments: type[BaseModel], name: str) -> dict[str, Any]:
    """The JSON Schema of the arguments. Raises `TypeError` for one that cannot be described."""
    try:
        schema = arguments.model_json_schema()
    except PydanticUserError as error:
        raise TypeError(f"{name}: a parameter cannot be described as JSON: {error}") from error
    schema.pop("title", None)
    for described in schema.get("properties", {}).values():
        described.pop("title", None)
    return schema | {"properties": schema.get("properties", {})}


def documentation(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description of the function, and of its parameters."""
    docstring = griffe.Docstring(inspect.getdoc(function) or "")
    description, described = "", {}
    for section in docstring.parse("auto", per_style_options=_QUIET):
        if section.kind is griffe.DocstringSectionKind.text and not description:
            description = section.value.strip()
        elif section.kind is griffe.DocstringSectionKind.parameters:
            described = {parameter.name: parameter.description for parameter in section.value}
    return description, described


def check_timeout(name: str, seconds: float) -> None:
    """Raises `ValueError` for a timeout that a function cannot have."""
    if not 0 < seconds <= MAX_TIMEOUT_SECONDS:
        raise ValueError(f"{name}: a timeout is more than 0 and at most {MAX_TIMEOUT_SECONDS:g} seconds.")


def check_description(name: str, description: str) -> None:
    """Raises `ValueError` for a description that is too long."""
    if len(description) > MAX_DESCRIPTION_CHARACTERS:
        raise ValueError(f"{name}: a description has at most {MAX_DESCRIPTION_CHARACTERS:,} characters.")


def problems(error: ValidationError) -> str:
    """The invalid arguments, for the caller."""
    found = error.errors(include_url=False, include_context=False)[:MAX_PROBLEMS]
    return " ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}." for problem in found)
