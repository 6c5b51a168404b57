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
from khala.sdk.loop import LoopContext


class CallOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a call of `AgentRunContext.tool_call` ended. `error` is the message of a call that failed or was denied."""

    output: Any = None
    error: str | None = None
    denied: bool = False


class ConversationTurn(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a message of the conversation. `role` is user, assistant or system."""

    role: str
    text: str


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the run has made before it was interrupted. `ended`: its outcome is stored."""

    id: str
    name: str
    args: dict[str, Any]
    ended: bool


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

    @property
    def error_type(self) -> type[Exception]:
        """The exception by which the agent fails with a message for people: `StepError`."""
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

    async def tool_call(
        self,
        key: str,
        name: str,
        args: dict[str, Any],
        function: Callable[[dict[str, Any]], Any],
        /,
        *,
        approve: bool = False,
    ) -> CallOutcome:
        """Call the function with these arguments, and show and store the call as one of the tool `name`.

        `key` identifies the call in this run, so the order of calls does not matter: it may be the id that a library
        gives to it, or the id of a `RecordedCall`. With `approve`, a person decides first, and the function gets the
        arguments that were approved. An error of the function is stored as the call's failure, and returned.
        """
        ...

    def usage(
        self,
        *,
        provider: str | None = None,
        model: str | None = None,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cost_usd: str | None = None,
        milliseconds: int = 0,
    ) -> None:
        """Report a model call that the agent has made itself. It gets a receipt, and counts to the budgets.

        `cost_usd` is a decimal string, by default the server's price. Report a call in the step that makes it, so that
        it is reported once. Raises `StepError` outside of a step, unless the agent has `replay=False`.
        """
        ...

    @property
    def loop(self) -> LoopContext:
        """The operations of the built-in loop, for a loop of your own. The agent must have `replay=False`.

        An operation of the loop may not run beside another operation. Raises `StepError` otherwise.
        """
        ...

    @property
    def history(self) -> Sequence[ConversationTurn]:
        """The texts of `messages`. Messages without text are left out."""
        ...

    async def read_blocks(self) -> Sequence[str | RecordedCall]:
        """The texts and calls of this run before it was interrupted, in order."""
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

    `guests`: people without an account may choose it. `replay`: see `agent`.
    """

    def __init__(self, function: AgentFunction, agent: Agent, *, guests: bool, replay: bool = True) -> None:
        self.function = function
        self.agent = agent
        self.guests = guests
        self.replay = replay
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
    replay: bool = True,
) -> Callable[[AgentFunction], AppAgent]:
    """Offer this function as the agent `app:NAME`. A text that it returns is added to the answer.

    `title` and `description` are what people read, by default the name and the function's docstring. `tools` are
    patterns of the tools that it may call. `model`: the model that it calls, by default the server's. `guests`: people
    without an account may choose it. `replay`: when the function is called again, it writes its text again, and what is
    stored is skipped. Without, it goes on after the stored text, and `read_blocks` says where that is.

    Raises `TypeError` and `ValueError` for a function that cannot be an agent.
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
        return AppAgent(function, checked, guests=guests, replay=replay)

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
