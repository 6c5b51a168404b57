"""Agents and tools in Python, as an application defines them. `KHALA_APP_JOURNAL` names the file of their effects."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from khala.domain.autopilot import SUMMARY_PROMPT
from khala.sdk import AgentRunContext, StepError, ToolCallContext, ToolError, ToolUse, agent, tool

MODULE = __name__


def journal(effect: str) -> None:
    """Record that something was carried out."""
    with Path(os.environ["KHALA_APP_JOURNAL"]).open("a") as file:
        file.write(effect + "\n")


class Place(BaseModel):
    """A place on earth."""

    city: str
    country: str = "DE"


@tool
async def weather(context: ToolCallContext, place: Place, day: date, unit: Literal["C", "F"] = "C") -> dict[str, Any]:
    """Tell the weather of a day.

    Args:
        context: The call.
        place: Where.
        day: When.
        unit: The unit of temperatures.

    """
    context.progress("Looking at the sky")
    return {"city": place.city, "weekday": f"{day:%A}", "unit": unit, "guest": context.user_id is None}


@tool(permissions={"network"}, approval="ask", timeout=5)
def pay(amount: Annotated[int, Field(gt=0)]) -> str:
    """Pay an amount."""
    journal(f"pay {amount}")
    return f"Paid {amount}."


@tool(name="break")
async def break_down(*, politely: bool) -> bytes:
    """Fail."""
    if politely:
        raise ToolError("It is out of order.")
    raise RuntimeError("secret")


@tool
async def picture() -> bytes:
    """Draw a picture."""
    return b"\x89PNG" + bytes(8)


def double(number: int) -> int:
    """Twice the number."""
    journal(f"double {number}")
    return 2 * number


async def fail() -> None:
    """Raise."""
    raise ConnectionError("the password is hunter2")


@agent("steps", title="Stepwise", guests=True, tools=["weather"])
async def steps(context: AgentRunContext) -> str:
    """Carry out steps side by side, and one after the other."""
    await context.text(f"You said {context.prompt}.\n")
    numbers = await asyncio.gather(*(context.step("double", double, number) for number in range(3)))
    found = await context.call("weather", place={"city": "Ulm"}, day="2026-11-24")
    nothing = await context.step("nothing", lambda: None)
    long = await context.step("long", lambda: "x" * 10_000)
    try:
        await context.step("fail", fail)
    except StepError as error:
        await context.text(f"{error}\n")
    return f"{numbers} {found['weekday']} {nothing} {len(long)} {len(context.messages)}"


@agent("approval", guests=True)
async def approval(context: AgentRunContext) -> None:
    """Ask for approval."""
    first = await context.step("first", double, 21)
    await context.text(f"May I send {first}?\n")
    decision = await context.approve("send_mail", to="ann@example.org", number=first)
    if decision.approved:
        await context.step("sent", journal, f"sent {decision.arguments}")
    await context.text(f"approved={decision.approved} {decision.arguments['number']} {decision.reason}")


@agent("approval-and-timeout", guests=True)
async def approval_and_timeout(context: AgentRunContext) -> str:
    """Ask for approval beside a step that takes too long."""
    asking = asyncio.create_task(context.approve("go_on"))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await context.step("slow", asyncio.sleep, 60)
    return f"approved={(await asking).approved}"


@agent("models", guests=True, tools=["weather"])
async def models(context: AgentRunContext) -> None:
    """Ask a model, and let it write the rest."""
    reply = await context.generate("/say blue", instructions="One word.")
    await context.text(f"It said {reply}. ")
    await context.answer(instructions="Be brief.")


@agent("crash", guests=True)
async def crash(context: AgentRunContext) -> None:
    """Raise an exception."""
    await context.text("Well")
    raise RuntimeError("secret")


@agent("refuse", guests=True)
async def refuse(context: AgentRunContext) -> None:
    """Fail with a message."""
    raise StepError("I only speak about birds.")


@agent("private")
async def private(context: AgentRunContext) -> str:
    """Be for accounts only."""
    return context.user_id or "nobody"


@agent("hang", guests=True)
async def hang(context: AgentRunContext) -> None:
    """Wait for ever, and clean up when it is cancelled."""
    try:
        await context.text("Waiting")
        await asyncio.Event().wait()
    finally:
        journal("cleaned up")


async def slow(number: int) -> int:
    """Take some time."""
    journal(f"begin {number}")
    await asyncio.sleep(0.4)
    journal(f"end {number}")
    return number


@agent("long", guests=True)
async def long(context: AgentRunContext) -> None:
    """Do six slow steps, and write between them."""
    total = 0
    for number in range(6):
        total += await context.step("slow", slow, number)
        await context.text(f"After step {number}, the sum is {total}.\n")


async def hold(begun: asyncio.Event) -> None:
    """Wait for ever, and record the end."""
    begun.set()
    try:
        await asyncio.Event().wait()
    finally:
        journal("left behind")


@agent("careless", guests=True)
async def careless(context: AgentRunContext) -> str:
    """Begin a step, and do not wait for it."""
    begun = asyncio.Event()
    background.add(asyncio.create_task(context.step("hold", hold, begun)))
    await begun.wait()
    return "Done."


@agent("planned", guests=True)
async def planned(context: AgentRunContext) -> str:
    """Complete the step of a plan."""
    await context.step("double", double, 4)
    return "Counted.\n\n<promise>COMPLETE</promise>"


@agent("reports", guests=True)
async def reports(context: AgentRunContext) -> str:
    """Call a model in a step, and wait."""

    async def ask() -> str:
        context.usage(provider="openai", model="gpt-5-mini", input_tokens=5, output_tokens=2)
        return "asked"

    await context.step("ask", ask)
    await context.approve("go_on")
    try:
        context.usage(input_tokens=1)
    except StepError as error:
        return str(error)
    return "It was reported again."


LOOP_TOOLS = ("weather", "break", "picture")


@agent("loop", guests=True, tools=LOOP_TOOLS, replay=False)
async def loop(context: AgentRunContext) -> None:
    """Do what the built-in loop does, with public operations and its prompt for a summary."""
    run = context.loop
    most = run.options.step_limit
    await run.finish_calls()
    while len(run.steps) < most:
        reply = await run.reply()
        if not reply.calls:
            return
        await run.begin_calls(reply.calls, max_steps=most)
        await run.finish_calls()
    message = f"Stopped after {most} steps, the limit of this run."
    if "max_steps" not in run.notices:
        await run.notice("max_steps", message)
    await run.reply((), prompt=SUMMARY_PROMPT.format(why=message))
    run.finish("max_steps")


async def error_of(operation: Awaitable[Any]) -> str:
    """The message with which the operation is refused."""
    try:
        await operation
    except StepError as error:
        return str(error)
    return "It was allowed."


@agent("misuse", guests=True, tools=LOOP_TOOLS, replay=False)
async def misuse(context: AgentRunContext) -> None:
    """Ask for what a loop may not do, and fail with a code."""
    run = context.loop
    use = ToolUse(id="", name="weather", args={})
    refused = [
        await error_of(run.begin_calls([])),
        await error_of(run.begin_calls([use] * 257)),
        await error_of(run.notice("Not a code", "Hello.")),
        await error_of(run.notice("fine", "x" * 1001)),
        *await asyncio.gather(error_of(context.step("double", double, 1)), error_of(run.reply())),
    ]
    await run.begin_calls([use])
    refused.append(await error_of(run.begin_calls([use])))
    try:
        run.finish("because")  # type: ignore[arg-type]
    except StepError as error:
        refused.append(str(error))
    try:
        for _ in range(5_001):
            await run.finish_calls()
    except StepError as error:
        refused.append(str(error))
    await context.text("\n".join(refused))
    raise StepError("I give up.", code="gave_up", retry_after=7)


@agent("replayed-loop", guests=True)
async def replayed_loop(context: AgentRunContext) -> None:
    """Use a loop in an agent that is replayed."""
    await context.loop.reply()


calls = 0
background: set[asyncio.Task[Any]] = set()


@agent("random", guests=True)
async def random(context: AgentRunContext) -> None:
    """Write another text each time, which is a mistake."""
    global calls
    calls += 1
    await context.text(f"Call {calls}. ")
    await context.approve("go_on")
