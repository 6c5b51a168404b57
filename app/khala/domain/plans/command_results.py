"""Judges how a command ended."""

from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from khala.domain.plans.rate_limits import find_rate_limit

CommandFailureCode: TypeAlias = Literal["rate_limited", "unavailable", "timeout", "failed"]
MAX_STDOUT_LINES = 20
"""Lines at the end of standard output that may report a rate limit. Those before are work, not the cause."""
MAX_REASON_CHARACTERS = 500


class CommandFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A command failed. `retry_after` is in seconds, None if no time is told."""

    code: CommandFailureCode
    message: str
    retry_after: float | None = None


def judge_exit(code: int, *, stdout: str, stderr: str, now: datetime) -> CommandFailure | None:
    """The failure of a command that exited; None for status 0, whatever it wrote.

    `stdout` and `stderr` are the ends of its outputs.
    """
    if code == 0:
        return None
    last_lines = "\n".join(stdout.rstrip().split("\n")[-MAX_STDOUT_LINES:])
    limit = find_rate_limit(stderr, now) or find_rate_limit(last_lines, now)
    reason = _reason(stderr if stderr.strip() else last_lines)
    if limit is not None:
        return CommandFailure(
            code="rate_limited", message=f"A rate limit was reached{reason}", retry_after=limit.retry_after
        )
    how = f"was killed by signal {code - 128}" if code > 128 else f"exited with status {code}"
    return CommandFailure(code="failed", message=f"The command {how}{reason}")


def _reason(text: str) -> str:
    """The last line of the text, as the end of a sentence."""
    line = text.rstrip().rpartition("\n")[2].strip()[:MAX_REASON_CHARACTERS]
    return f": {line}" if line else "."
