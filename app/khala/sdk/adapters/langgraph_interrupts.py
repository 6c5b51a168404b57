"""Has a person decide about the interrupts of a graph.

An interrupt's value is an object, which is shown as the arguments of a call, or any other value, which is shown as the
argument `value`. The graph goes on with `{"approved": …, "arguments": …, "reason": …}`. The requests of LangChain's
middleware for human decisions are known: each action is decided about, and the graph goes on with its `decisions`.
"""

import asyncio
from typing import Any

from langgraph.types import Interrupt

from khala.sdk.adapters.surface import RunSurface, as_object, call_name

INTERRUPT = "interrupt"


async def decide(surface: RunSurface, key: str, interrupt: Interrupt) -> Any:
    """The value with which the graph goes on."""
    value = interrupt.value
    if isinstance(value, dict) and isinstance(value.get("action_requests"), list):
        requests = enumerate(value["action_requests"])
        return {"decisions": await asyncio.gather(*(_act(surface, f"{key}:{i}", one) for i, one in requests))}
    args = as_object(value if isinstance(value, dict) else {"value": value})
    name = value.get("action") if isinstance(value, dict) else None
    name = name if isinstance(name, str) and name else INTERRUPT
    outcome = await surface.tool_call(key, call_name(name), args, _approved, approve=True)
    if outcome.error is not None:
        return {"approved": False, "arguments": args, "reason": outcome.error}
    return {"approved": True, "arguments": outcome.output, "reason": ""}


async def _act(surface: RunSurface, key: str, request: dict[str, Any]) -> dict[str, Any]:
    args = as_object(request.get("args", request.get("arguments", {})))
    outcome = await surface.tool_call(key, call_name(str(request["name"])), args, _approved, approve=True)
    if outcome.error is not None:
        return {"type": "reject", "message": outcome.error}
    if outcome.output != args:
        return {"type": "edit", "edited_action": {"name": request["name"], "args": outcome.output}}
    return {"type": "approve"}


def _approved(args: dict[str, Any]) -> dict[str, Any]:
    return args
