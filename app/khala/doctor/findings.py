"""Findings of the doctor: what was checked, the result, and advice."""

from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

import msgspec

FindingState: TypeAlias = Literal["ok", "warn", "bad"]
"""`warn`: it works now, but may stop working or is dangerous. `bad`: it must change."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A result: what was checked, its state, and a sentence, which says what to do unless the state is ok."""

    what: str
    state: FindingState
    says: str

    @property
    def well(self) -> bool:
        """Whether Khala works as it is."""
        return self.state != "bad"


Check: TypeAlias = Callable[[], Awaitable[Finding]]


def ok(what: str, says: str) -> Finding:
    """A finding without a problem."""
    return Finding(what=what, state="ok", says=says)


def warn(what: str, says: str) -> Finding:
    """A finding of a risk."""
    return Finding(what=what, state="warn", says=says)


def bad(what: str, says: str) -> Finding:
    """A finding of a problem."""
    return Finding(what=what, state="bad", says=says)


async def run_check(what: str, check: Check) -> Finding:
    """The check's finding. A check that raises is a finding, too."""
    try:
        return await check()
    except Exception as error:  # noqa: BLE001  # whatever a check raises is a problem to report
        return bad(what, f"{error} ({error.__cause__ or type(error).__name__})")
