"""A call of a tool, from arguments to result: checked, bounded in time, and never an exception."""

import asyncio
from typing import Any

import structlog

from khala.domain.errors import KhalaError
from khala.domain.tools import ToolSpec
from khala.tools.port import CallContext, CallResult, Tool, ToolError
from khala.tools.validation import arguments

log = structlog.get_logger()

PATIENCE = 2.0
"""Seconds that a cancelled tool has to clean up, before it is left behind."""
CODES = {
    "forbidden": "forbidden", "unauthorized": "forbidden", "not_found": "not_found", "blob_not_found": "not_found",
    "thread_not_found": "not_found", "run_not_found": "not_found", "payload_too_large": "too_large",
    "invalid_input": "bad_arguments", "unavailable": "unavailable", "rate_limited": "unavailable",
}  # fmt: skip
"""A failure's code by that of the error which was raised; all others are `failed`."""

_left_behind: set["asyncio.Task[CallResult]"] = set()


async def invoke(tool: Tool, args: dict[str, Any], call: CallContext) -> CallResult:
    """What the call came to. Raises nothing but `CancelledError`: every failure is a result with a message and a code.

    When this returns or raises the tool's task has ended, unless it ignores its cancellation for two seconds.
    """
    spec = tool.spec
    missing = spec.permissions - call.actor.permissions
    if missing:
        return _forbidden(spec, missing)
    try:
        await arguments.check(spec, args)
    except ToolError as error:
        return _failed(error.message, error.code)
    task = asyncio.create_task(tool.run(args, call), name=f"tool {spec.name}")
    try:
        await asyncio.wait({task}, timeout=spec.timeout)
        if not task.done():
            await _end(task, spec)
            return _failed(f"Timed out after {spec.timeout:g} s.", "timeout")
        return _outcome(task, spec)
    except asyncio.CancelledError:
        await _end(task, spec)
        raise


def _forbidden(spec: ToolSpec, missing: frozenset[Any]) -> CallResult:
    names = ", ".join(sorted(missing))
    return _failed(f"{spec.name} needs the permission {names}, which this caller does not have.", "forbidden")


def _outcome(task: "asyncio.Task[CallResult]", spec: ToolSpec) -> CallResult:
    try:
        return task.result()
    except ToolError as error:
        return _failed(error.message, error.code)
    except KhalaError as error:
        return _failed(error.message, CODES.get(error.code, "failed"))
    except (Exception, asyncio.CancelledError):  # the tool's own, whatever it is: nobody has cancelled it here
        log.exception("tool_crashed", tool=spec.name)
        return _failed("The tool failed inside.", "failed")


def _failed(message: str, code: str) -> CallResult:
    return CallResult(ok=False, output=message, summary=message, code=code)


async def _end(task: "asyncio.Task[CallResult]", spec: ToolSpec) -> None:
    """Cancel it, and wait until it has cleaned up, but not for ever."""
    # Kept until it ends, because nothing else does, and its end is looked at, whoever waits.
    _left_behind.add(task)
    task.add_done_callback(_forget)
    task.cancel()
    await asyncio.wait({task}, timeout=PATIENCE)
    if not task.done():
        log.error("tool_left_behind", tool=spec.name, seconds=PATIENCE)


def _forget(task: "asyncio.Task[CallResult]") -> None:
    _left_behind.discard(task)
    if not task.cancelled():
        task.exception()
