"""The decorator `tool`: makes a tool of a function, with a schema from its type hints and its docstring."""

import asyncio
import inspect
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, overload

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from khala.domain.tools import SEPARATOR, TOOL_NAME, RuleAction, ToolActor, ToolPermission, ToolSpec
from khala.sdk.parameters import arguments_of, check_description, check_timeout, documentation, problems, schema_of
from khala.tools.port import CallContext, CallResult, ToolError, ToolFile

APP_SOURCE = "app"
"""The source of the tools of `KHALA_APP`, in lists of tools and in receipts."""
MAX_THREADS = 64
"""Functions that are not `async` and run at once. Further calls wait."""

_THREADS = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="khala-app")
"""Threads of their own, so that slow functions do not delay the work of the server."""


class ToolCallContext(msgspec.Struct, frozen=True, kw_only=True):
    """The context of one call of a tool.

    `user_id` is None for a guest, who has no account. `thread_id` and `run_id` are None for a call by an MCP client.
    `idempotency_key` is the same for each attempt of this call, and unique to it.
    """

    actor: ToolActor
    idempotency_key: str
    call: CallContext

    @property
    def user_id(self) -> str | None:
        """The id of the account for which the tool acts."""
        return None if self.actor.user_id is None else str(self.actor.user_id)

    @property
    def thread_id(self) -> str | None:
        """The id of the thread of the call."""
        return None if self.actor.thread_id is None else str(self.actor.thread_id)

    @property
    def run_id(self) -> str | None:
        """The id of the run that makes the call."""
        return None if self.actor.run_id is None else str(self.actor.run_id)

    def progress(self, text: str) -> None:
        """Show people in one line how far the call is. Khala shows at most one line a second."""
        self.call.progress(text)


class AppTool:
    """A tool that is a Python function. It can still be called as a function."""

    def __init__(
        self, function: Callable[..., Any], spec: ToolSpec, arguments: type[BaseModel], context: str | None
    ) -> None:
        self.spec = spec
        self._function = function
        self._arguments = arguments
        self._context = context
        self.__doc__ = function.__doc__
        self.__name__ = spec.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self._function(*args, **kwargs)

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Execute a call. Raises `ToolError`."""
        try:
            values = self._arguments.model_validate(args)
        except ValidationError as error:
            raise ToolError(problems(error), code="bad_arguments") from error
        named = {name: getattr(values, name) for name in self._arguments.model_fields}
        if self._context is not None:
            named[self._context] = ToolCallContext(actor=call.actor, idempotency_key=call.idempotency_key, call=call)
        return await as_result(await call_function(self._function, **named), call)


@overload
def tool(function: Callable[..., Any], /) -> AppTool: ...


@overload
def tool(
    *,
    name: str | None = None,
    permissions: Iterable[ToolPermission] = (),
    approval: RuleAction = "allow",
    idempotent: bool = False,
    timeout: float = 30.0,
) -> Callable[[Callable[..., Any]], AppTool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    permissions: Iterable[ToolPermission] = (),
    approval: RuleAction = "allow",
    idempotent: bool = False,
    timeout: float = 30.0,
) -> AppTool | Callable[[Callable[..., Any]], AppTool]:
    """Offer this function to models as a tool.

    The parameters' type hints become the schema. The docstring becomes the description, and its section `Args:` the
    descriptions of parameters. A parameter of the type `ToolCallContext` gets the context of the call, and is no
    argument. A function that is not `async` is called in a thread.

    The function returns text, bytes, a `ToolFile`, anything that is JSON, or a list of these with a `ToolFile`; long
    output is stored as a blob. It raises `ToolError` with a message for the model. The message of any other exception
    is only logged.

    `name`: by default the function's. `permissions`: a guest is only offered tools that need no other permissions than
    `fs` and `ui`. `approval`: whether a call is allowed, or a person is asked, if no rule says otherwise. `idempotent`:
    a call whose outcome is unknown, because its process was lost, may be repeated. `timeout`: seconds that a call may
    take. Raises `TypeError` and `ValueError` for a function that cannot be a tool.
    """

    def decorate(decorated: Callable[..., Any]) -> AppTool:
        return _create(
            decorated,
            name=decorated.__name__ if name is None else name,
            permissions=frozenset(permissions),
            approval=approval,
            idempotent=idempotent,
            timeout=timeout,
        )

    return decorate if function is None else decorate(function)


async def call_function(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call the function with these arguments, in a thread if it is not `async`. `SystemExit` becomes `RuntimeError`."""
    try:
        return await _call(function, *args, **kwargs)
    except SystemExit as error:  # It would end the process with all its runs.
        raise RuntimeError("The function called `sys.exit`.") from error


async def _call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    call = partial(copy_context().run, function, *args, **kwargs)
    found = await asyncio.get_running_loop().run_in_executor(_THREADS, call)
    return await found if inspect.isawaitable(found) else found


def as_json(value: Any) -> Any:
    """The value as JSON types: of data classes, Pydantic models, times and the like. Raises `ToolError`."""
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise ToolError(f"The result is not JSON: {error}") from error


async def as_result(value: Any, call: CallContext) -> CallResult:
    """The result of a call whose function returned this value. Raises `ToolError`."""
    if isinstance(value, ToolFile):
        return CallResult(content=(value,))
    if isinstance(value, list | tuple) and any(isinstance(item, ToolFile) for item in value):
        return CallResult(content=tuple(item if isinstance(item, ToolFile) else _as_text(item) for item in value))
    if isinstance(value, bytes | bytearray):
        await call.sink.write(bytes(value))
        return CallResult(media_type="application/octet-stream")
    return CallResult(output="" if value is None else as_json(value))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(as_json(value)).decode()


def _create(function: Callable[..., Any], *, name: str, timeout: float, **options: Any) -> AppTool:
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"{name}: a tool is a function that returns its result.")
    if TOOL_NAME.fullmatch(name) is None or SEPARATOR in name:
        raise ValueError(f"{name}: a tool's name has 1 to 64 letters, digits, _ and -, and no {SEPARATOR}.")
    check_timeout(name, timeout)
    description, described = documentation(function)
    if not description:
        raise ValueError(f"{name}: a tool needs a docstring, by which the model decides when to call it.")
    check_description(name, description)
    arguments, context = arguments_of(function, name, described, ToolCallContext)
    spec = ToolSpec(
        name=name,
        description=description,
        parameters=schema_of(arguments, name),
        timeout=timeout,
        source=APP_SOURCE,
        **options,
    )
    return AppTool(function, spec, arguments, context)
