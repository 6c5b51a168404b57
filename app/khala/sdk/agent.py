"""The decorator `agent`: makes an agent of a function, which answers in place of the built-in loop."""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from khala.domain.agents import (
    APP_PREFIX,
    MAX_DESCRIPTION_CHARACTERS,
    MAX_EXAMPLE_CHARACTERS,
    MAX_EXAMPLES,
    MAX_TITLE_CHARACTERS,
    Agent,
    AgentName,
)
from khala.domain.chat import Message


class StepError(Exception):
    """A step, a tool call or a model call of an agent failed. The message says why, and is stored in the answer."""


class ApprovalResult(msgspec.Struct, frozen=True, kw_only=True):
    """A person's decision. `arguments` are the approved ones, which the person may have edited."""

    approved: bool
    arguments: dict[str, Any]
    reason: str = ""


class AgentRunContext(Protocol):
    """The run of an agent: what was asked, and how to answer.

    Each method stores what it does, and is carried out once. If the process of the run is lost, or the run has waited
    for a person, the function is called again from its beginning. A method that has been carried out before then
    returns its stored result at once. So the function must call the same methods in the same order each time: anything
    that may differ, such as the time, a random number or the answer of a server, belongs in a `step`.
    """

    @property
    def prompt(self) -> str:
        """The text of the message to answer."""
        ...

    @property
    def messages(self) -> Sequence[Message]:
        """The messages of the branch, the oldest first. The last one is to be answered."""
        ...

    @property
    def user_id(self) -> str | None:
        """The id of the account that asks, None for a guest."""
        ...

    @property
    def thread_id(self) -> str:
        """The id of the thread."""
        ...

    @property
    def run_id(self) -> str:
        """The id of the run."""
        ...

    async def text(self, text: str) -> None:
        """Add text to the answer. Observers see it within half a second."""
        ...

    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call the function, and store its result under this name.

        The function may be `async`; another one is called in a thread. The result must be JSON, or of a type that
        becomes JSON, and is returned as JSON types; an empty text is returned as None. Steps may be carried out side by
        side. A step whose process was lost before the result was stored is carried out again. Raises `StepError` if
        the function raised an exception.
        """
        ...

    async def call(self, tool: str, /, **args: Any) -> Any:
        """Call a tool that the agent is offered, as a model would: the rules for approval apply.

        Returns the tool's output: text or JSON. Raises `StepError` if the call fails or is denied.
        """
        ...

    async def approve(self, name: str, /, **arguments: Any) -> ApprovalResult:
        """Ask a person for approval of these arguments. The run holds no process while it waits."""
        ...

    async def generate(self, prompt: str, *, instructions: str = "", max_tokens: int | None = None) -> str:
        """Ask the run's model. The reply is returned, and is no part of the answer.

        Budgets and receipts apply. Raises `StepError` if no model gives a reply.
        """
        ...

    async def answer(self, *, instructions: str = "") -> None:
        """Let the built-in loop write the rest of the answer, with the agent's tools.

        The model reads the steps so far as its own tool calls. `instructions` are added to the run's. No other method
        may be called afterwards.
        """
        ...


AgentFunction: TypeAlias = Callable[[AgentRunContext], Awaitable[str | None]]


class AppAgent:
    """An agent that is a Python function. `agent` is the entry by which people choose it.

    `guests`: people without an account may choose it.
    """

    def __init__(self, function: AgentFunction, agent: Agent, *, guests: bool) -> None:
        self.function = function
        self.agent = agent
        self.guests = guests
        self.__doc__ = function.__doc__

    @property
    def name(self) -> str:
        """The name without `app:`."""
        return self.agent.name.removeprefix(APP_PREFIX)


def agent(
    name: str,
    *,
    title: str = "",
    description: str = "",
    tools: Sequence[str] = (),
    model: str | None = None,
    examples: Sequence[str] = (),
    guests: bool = False,
) -> Callable[[AgentFunction], AppAgent]:
    """Offer this function as the agent `app:NAME`. A text that it returns is added to the answer.

    `title` and `description` are what people read, by default the name and the function's docstring. `tools` are
    patterns of the tools that it may call. `model`: the model that it calls, by default the server's. `guests`: people
    without an account may choose it. Raises `TypeError` and `ValueError` for a function that cannot be an agent.
    """

    def decorate(function: AgentFunction) -> AppAgent:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{name}: an agent is an `async` function of one `AgentRunContext`.")
        fields: Mapping[str, Any] = {
            "name": name,
            "title": title or name,
            "description": description or inspect.getdoc(function) or "",
            "tools": list(tools),
            "model": model,
            "examples": list(examples),
        }
        checked = _check(name, fields)
        return AppAgent(function, checked, guests=guests)

    return decorate


class _Definition(msgspec.Struct, kw_only=True):
    name: AgentName


def _check(name: str, fields: Mapping[str, Any]) -> Agent:
    limits = {"title": MAX_TITLE_CHARACTERS, "description": MAX_DESCRIPTION_CHARACTERS}
    for field, limit in limits.items():
        if len(fields[field]) > limit:
            raise ValueError(f"{name}: {field} has at most {limit:,} characters.")
    if len(fields["examples"]) > MAX_EXAMPLES or any(len(one) > MAX_EXAMPLE_CHARACTERS for one in fields["examples"]):
        raise ValueError(f"{name}: at most {MAX_EXAMPLES} examples of {MAX_EXAMPLE_CHARACTERS} characters are allowed.")
    try:
        msgspec.convert({"name": name}, _Definition)
    except msgspec.ValidationError as error:
        raise ValueError(f"{name}: a name has 1 to 63 lower-case letters, digits and dashes.") from error
    return Agent(**dict(fields) | {"name": APP_PREFIX + name}, instructions="", version=1, visibility="public")
