"""Executes a call of a tool: checks permissions and arguments, bounds the time, and turns errors into results."""

import asyncio
from typing import Any

import msgspec
import structlog

from khala.domain.errors import KhalaError
from khala.domain.tools import ToolSpec
from khala.tools.call_clock import CallClock
from khala.tools.port import CallContext, CallResult, Tool, ToolError
from khala.tools.validation import arguments

log = structlog.get_logger()

CLEANUP_TIMEOUT_SECONDS = 2.0
"""Time for a cancelled tool to clean up, before it is abandoned."""
CODES = {
    "forbidden": "forbidden", "unauthorized": "forbidden", "not_found": "not_found", "blob_not_found": "not_found",
    "thread_not_found": "not_found", "run_not_found": "not_found", "payload_too_large": "too_large",
    "invalid_input": "bad_arguments", "unavailable": "unavailable", "rate_limited": "unavailable",
}  # fmt: skip
"""The code of a failed result by the code of the error. All other errors are `failed`."""

_abandoned: set["asyncio.Task[CallResult]"] = set()


async def invoke(tool: Tool, args: dict[str, Any], call: CallContext) -> CallResult:
    """Execute the call. Every failure is a result with a message and a code; only `CancelledError` is raised.

    When this ends, the tool's task has ended, unless it ignores its cancellation for `CLEANUP_TIMEOUT_SECONDS`.
    """
    spec = tool.spec
    missing = spec.permissions - call.actor.permissions
    if missing:
        return _forbidden(spec, missing)
    try:
        await arguments.check(spec, args)
    except ToolError as error:
        return _failed(error.message, error.code)
    clock = CallClock(spec.timeout)
    call = msgspec.structs.replace(call, clock=clock)
    task = asyncio.create_task(tool.run(args, call), name=f"tool {spec.name}")
    try:
        if not await clock.wait(task):
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
    except (Exception, asyncio.CancelledError):  # any error of the tool; a cancellation here is the tool's own
        log.exception("tool_crashed", tool=spec.name)
        return _failed("The tool failed with an internal error.", "failed")


def _failed(message: str, code: str) -> CallResult:
    return CallResult(ok=False, output=message, summary=message, code=code)


async def _end(task: "asyncio.Task[CallResult]", spec: ToolSpec) -> None:
    """Cancel the task, and wait until it has cleaned up or the timeout has passed."""
    # Keep a reference until the task ends, because there may be no other. `_forget` retrieves its exception.
    _abandoned.add(task)
    task.add_done_callback(_forget)
    task.cancel()
    await asyncio.wait({task}, timeout=CLEANUP_TIMEOUT_SECONDS)
    if not task.done():
        log.error("tool_not_stopped", tool=spec.name, seconds=CLEANUP_TIMEOUT_SECONDS)


def _forget(task: "asyncio.Task[CallResult]") -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()
