"""The decorator `resource`: offers the result of a function to MCP clients as a resource, or as many by a template."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from khala.sdk.parameters import MAX_DESCRIPTION_CHARACTERS
from khala.sdk.reading import ReaderContext, ReadingFunction
from khala.sdk.tool import as_json
from khala.sdk.uri_template import UriTemplate
from khala.tools.port import ToolFile


class AppResource:
    """A resource that is a Python function. It can still be called as a function.

    `media_type` is None if the result decides it. `guests`: people without an account may read it.
    """

    def __init__(
        self,
        function: ReadingFunction,
        name: str,
        uri: UriTemplate,
        *,
        title: str,
        media_type: str | None,
        guests: bool,
    ) -> None:
        self.function = function
        self.name = name
        self.uri = uri
        self.title = title
        self.media_type = media_type
        self.guests = guests
        self.__doc__ = function.description

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    @property
    def is_template(self) -> bool:
        """Whether the URI has variables."""
        return bool(self.uri.variables)

    async def read(self, variables: Mapping[str, str], context: ReaderContext) -> ToolFile:
        """The content of the resource with these values of its variables. Raises `ToolError`."""
        value = await self.function.read(variables, context)
        if isinstance(value, ToolFile):
            return value
        if isinstance(value, bytes | bytearray):
            return ToolFile(data=bytes(value), media_type=self.media_type or "application/octet-stream")
        if isinstance(value, str):
            return ToolFile(data=value.encode("utf-8", "replace"), media_type=self.media_type or "text/plain")
        return ToolFile(data=msgspec.json.encode(as_json(value)), media_type=self.media_type or "application/json")


def resource(
    uri: str,
    *,
    name: str | None = None,
    title: str = "",
    media_type: str | None = None,
    guests: bool = False,
    timeout: float = 30.0,
) -> Callable[[Callable[..., Any]], AppResource]:
    """Offer the result of this function to MCP clients as the resource with this URI.

    With variables, as in `shop://orders/{order}`, the URI is a template, and the function has a parameter for each of
    them: type hints convert the values. `{+path}` at the end may contain slashes. The docstring becomes the
    description. A parameter of the type `ReaderContext` gets the caller, and is no variable. A function that is not
    `async` is called in a thread.

    The function returns text, bytes, a `ToolFile` or anything that is JSON. It raises `ToolError` with a message for
    people, with the code `not_found` if there is no such resource. The message of any other exception is only logged.

    `name`: by default the function's. `title`: what people read, by default the name. `media_type`: by default that of
    text, JSON or bytes. `guests`: callers without an account may read it. `timeout`: seconds that the function may
    take. Raises `TypeError` and `ValueError` for a function or URI that cannot be used.
    """
    template = UriTemplate(uri)

    def decorate(function: Callable[..., Any]) -> AppResource:
        chosen = function.__name__ if name is None else name
        if max(len(title), len(media_type or "")) > MAX_DESCRIPTION_CHARACTERS:
            raise ValueError(f"{chosen}: a title has at most {MAX_DESCRIPTION_CHARACTERS:,} characters.")
        reading = ReadingFunction(function, chosen, timeout=timeout)
        if set(template.variables) != set(reading.parameters):
            raise TypeError(f"{chosen}: the function needs a parameter for each variable of {uri}, and no others.")
        return AppResource(reading, chosen, template, title=title or chosen, media_type=media_type, guests=guests)

    return decorate
