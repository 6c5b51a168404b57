"""The decorator `prompt`: offers a function to MCP clients as a prompt, which people choose in those clients."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

import msgspec

from khala.sdk.parameters import MAX_DESCRIPTION_CHARACTERS
from khala.sdk.reading import ReaderContext, ReadingFunction
from khala.tools.port import ToolError, ToolFile

MAX_MESSAGES = 100
"""Messages of a prompt."""


class PromptMessage(msgspec.Struct, frozen=True):
    """A message of a prompt: a text or a file, of the user or of the assistant."""

    content: str | ToolFile
    role: Literal["user", "assistant"] = "user"


class AppPrompt:
    """A prompt that is a Python function. It can still be called as a function.

    `guests`: people without an account may get it. `function` describes the arguments.
    """

    def __init__(self, function: ReadingFunction, name: str, *, title: str, guests: bool) -> None:
        self.function = function
        self.name = name
        self.title = title
        self.guests = guests
        self.__doc__ = function.description

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    async def messages(self, arguments: Mapping[str, str], context: ReaderContext) -> list[PromptMessage]:
        """The messages of the prompt. Raises `ToolError`."""
        found = await self.function.read(arguments, context)
        items = found if isinstance(found, list | tuple) else [found]
        if not 1 <= len(items) <= MAX_MESSAGES:
            raise ToolError(f"A prompt has 1 to {MAX_MESSAGES} messages.")
        return [_as_message(item) for item in items]


@overload
def prompt(function: Callable[..., Any], /) -> AppPrompt: ...


@overload
def prompt(
    *, name: str | None = None, title: str = "", guests: bool = False, timeout: float = 30.0
) -> Callable[[Callable[..., Any]], AppPrompt]: ...


def prompt(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    title: str = "",
    guests: bool = False,
    timeout: float = 30.0,
) -> AppPrompt | Callable[[Callable[..., Any]], AppPrompt]:
    """Offer this function to MCP clients as a prompt.

    The parameters become the arguments, which are texts: their type hints convert them. The docstring becomes the
    description, and its section `Args:` the descriptions of arguments. A parameter of the type `ReaderContext` gets the
    caller, and is no argument. A function that is not `async` is called in a thread.

    The function returns a text, a `ToolFile`, a `PromptMessage`, or a list of these. It raises `ToolError` with a
    message for people. The message of any other exception is only logged.

    `name`: by default the function's. `title`: what people read, by default the name. `guests`: callers without an
    account may get the prompt. `timeout`: seconds that the function may take. Raises `TypeError` and `ValueError` for a
    function that cannot be a prompt.
    """

    def decorate(decorated: Callable[..., Any]) -> AppPrompt:
        chosen = decorated.__name__ if name is None else name
        if len(title) > MAX_DESCRIPTION_CHARACTERS:
            raise ValueError(f"{chosen}: a title has at most {MAX_DESCRIPTION_CHARACTERS:,} characters.")
        return AppPrompt(
            ReadingFunction(decorated, chosen, timeout=timeout), chosen, title=title or chosen, guests=guests
        )

    return decorate if function is None else decorate(function)


def _as_message(item: Any) -> PromptMessage:
    if isinstance(item, PromptMessage):
        return item
    if isinstance(item, str | ToolFile):
        return PromptMessage(item)
    raise ToolError("A prompt consists of texts, files and messages.")
