"""The common part of prompts and resources: a function of an application that an MCP client has called, to read."""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from pydantic import BaseModel, ValidationError

from khala.domain.tools import SEPARATOR, TOOL_NAME
from khala.sdk.parameters import arguments_of, check_description, check_timeout, documentation, problems, schema_of
from khala.sdk.tool import call_function
from khala.tools.port import ToolError

MAX_PARAMETERS = 20


class ReaderContext(msgspec.Struct, frozen=True, kw_only=True):
    """The caller that gets a prompt or reads a resource. `user_id` is None for a guest, who has no account."""

    user_id: str | None


class ReadingFunction:
    """A function with arguments that are texts, and a context if it has a parameter of the type `ReaderContext`.

    `choices` has the values of parameters that have only some, as a `Literal` does.
    """

    def __init__(self, function: Callable[..., Any], name: str, *, timeout: float) -> None:
        """Raises `TypeError` and `ValueError` for a function that cannot be called so."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{name}: the function must return its result.")
        if TOOL_NAME.fullmatch(name) is None or SEPARATOR in name:
            raise ValueError(f"{name}: a name has 1 to 64 letters, digits, _ and -, and no {SEPARATOR}.")
        check_timeout(name, timeout)
        self.description, described = documentation(function)
        check_description(name, self.description)
        self._arguments, self._context = arguments_of(function, name, described, ReaderContext)
        self._function = function
        self._timeout = timeout
        schema = schema_of(self._arguments, name)
        self.parameters: Mapping[str, Mapping[str, Any]] = schema["properties"]
        """The JSON Schema of each parameter, by name."""
        self.required = frozenset(schema.get("required", ()))
        self.choices = {
            parameter: _choices(one, schema.get("$defs", {}), f"{name}: {parameter}")
            for parameter, one in self.parameters.items()
        }
        if len(self.parameters) > MAX_PARAMETERS:
            raise ValueError(f"{name}: at most {MAX_PARAMETERS} parameters are allowed.")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self._function(*args, **kwargs)

    async def read(self, arguments: Mapping[str, str], context: ReaderContext) -> Any:
        """The function's result. Raises `ToolError`, also for invalid arguments and after the timeout."""
        try:
            values: BaseModel = self._arguments.model_validate(dict(arguments))
        except ValidationError as error:
            raise ToolError(problems(error), code="bad_arguments") from error
        named = {name: getattr(values, name) for name in type(values).model_fields}
        if self._context is not None:
            named[self._context] = context
        try:
            async with asyncio.timeout(self._timeout) as timeout:
                return await call_function(self._function, **named)
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise ToolError(f"Timed out after {self._timeout:g} s.", code="timeout") from error


def _choices(schema: Mapping[str, Any], definitions: Mapping[str, Any], place: str) -> tuple[str, ...]:
    """The values that a parameter may have; none if it may have any. Raises `TypeError` if a text cannot be one."""
    resolved = definitions.get(str(schema.get("$ref", "")).rpartition("/")[2], schema)
    if resolved.get("type") in ("object", "array"):
        raise TypeError(f"{place}: arguments are texts, so a parameter is a text, a number or the like.")
    return tuple(str(value) for value in resolved.get("enum", ()))
