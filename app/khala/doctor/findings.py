"""Findings: what was checked, how it is, and what there is to say."""

from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

import msgspec

State: TypeAlias = Literal["ok", "warn", "bad"]
"""`warn` is for what works now and may not for long, or was asked for and is dangerous; `bad` for what must change."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What was checked, how it is, and what there is to say: of what is not ok, also what to do."""

    what: str
    state: State
    says: str

    @property
    def well(self) -> bool:
        """Whether Khala works with it as it is."""
        return self.state != "bad"


Check: TypeAlias = Callable[[], Awaitable[Finding]]


def ok(what: str, says: str) -> Finding:
    """Nothing to do."""
    return Finding(what=what, state="ok", says=says)


def warn(what: str, says: str) -> Finding:
    """It works, and somebody should know."""
    return Finding(what=what, state="warn", says=says)


def bad(what: str, says: str) -> Finding:
    """It must change."""
    return Finding(what=what, state="bad", says=says)


async def checked(what: str, check: Check) -> Finding:
    """What the check finds. One that fails is a finding, too."""
    try:
        return await check()
    except Exception as error:  # noqa: BLE001  # whatever a check trips over is what the doctor is asked about
        return bad(what, f"{error} ({error.__cause__ or type(error).__name__})")
