"""Runs long checks of arguments in processes: a few at once, each killed after a timeout."""

import asyncio
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import structlog

from khala.tools.port import ToolError
from khala.tools.validation import process
from khala.tools.validation.validator import Subject

log = structlog.get_logger()

MAX_PROCESSES = 2
MAX_WAITING = 16
"""Checks that wait for a process or run in one."""
CHECK_TIMEOUT_SECONDS = 10.0
"""Time of one check with the start of its process. The processor time has a lower limit of its own."""

_THREADS = ThreadPoolExecutor(MAX_PROCESSES, thread_name_prefix="heavy_checks")
_SLOTS = threading.BoundedSemaphore(MAX_WAITING)


async def problems(schema: Any, args: Any, subject: Subject = "arguments") -> list[str]:
    """The mismatches of a value with the schema.

    Raises `ToolError`: `bad_arguments` if the check takes too much time or memory, and `unavailable` if too many checks
    wait.
    """
    request = msgspec.json.encode([schema, args, subject])
    if not _SLOTS.acquire(blocking=False):
        raise ToolError("Too many arguments are being checked at once. Try again later.", code="unavailable")
    checking = _THREADS.submit(_check, request)
    # The slot is freed when the check ends, which may be after this task is cancelled.
    checking.add_done_callback(lambda _: _SLOTS.release())
    return await asyncio.wrap_future(checking)


def _check(request: bytes) -> list[str]:
    try:
        process_result = subprocess.run(  # noqa: S603  # our own program
            process.COMMAND,
            input=request,
            capture_output=True,
            timeout=CHECK_TIMEOUT_SECONDS,
            env=process.environment(),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        log.warning("arguments_check_timed_out", seconds=CHECK_TIMEOUT_SECONDS)
        raise _too_long_error() from error
    except OSError as error:
        log.exception("arguments_check_not_started")
        raise ToolError("The arguments can't be checked now. Try again later.", code="unavailable") from error
    if process_result.returncode != 0:
        log.warning(
            "arguments_check_failed",
            code=process_result.returncode,
            error=process_result.stderr[-1000:].decode(errors="replace"),
        )
        raise _too_long_error()
    return msgspec.json.decode(process_result.stdout, type=list[str])


def _too_long_error() -> ToolError:
    return ToolError("The arguments take too long to check.", code="bad_arguments")
