"""One workload: R runs of one model server to O observers each; through Khala, and then through each baseline."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

Baseline: TypeAlias = Literal["bare", "flush", "token"]
BASELINES: tuple[Baseline, ...] = ("bare", "flush", "token")
WARM_UP = "/words=3 /pace=0"
"""What the model is asked before all is measured."""
RUNS_PER_SECOND = 50
"""Runs that are begun in a second, where the answers are long enough: so that the beginning is no storm of its own."""


class Workload(msgspec.Struct, frozen=True):
    """So many runs, each in a thread of its own with so many observers."""

    runs: int
    observers: int

    @property
    def name(self) -> str:
        """As it is given and shown."""
        return f"{self.runs}x{self.observers}"

    @classmethod
    def of(cls, text: str) -> "Workload":
        """From its name. Raises `ValueError`."""
        runs, _, observers = text.replace("×", "x").partition("x")
        return cls(int(runs), int(observers))


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How each run goes: tokens a second, and for how many seconds."""

    rate: float = 30.0
    seconds: float = 10.0
    drivers: int = 1
    """Processes that hold the observers."""
    together: bool = False
    """One process serves and works on runs."""
    baselines: tuple[Baseline, ...] = BASELINES

    @property
    def tokens(self) -> int:
        """Of one run."""
        return max(1, round(self.rate * self.seconds))

    @property
    def pause(self) -> float:
        """Seconds that the model waits before its first token."""
        return 1 / self.rate

    def ramp(self, runs: int) -> float:
        """Seconds in which all runs are begun, evenly, so that they don't flush in step."""
        return min(self.seconds / 2, max(1.0, runs / RUNS_PER_SECOND))

    def steady(self, runs: int) -> tuple[float, float]:
        """Seconds after the first run's beginning between which all runs speak, with a margin."""
        margin = self.seconds / 20
        return self.ramp(runs) + margin, self.seconds - margin

    def prompt(self, run: int) -> str:
        """What the model is asked; it knows the run by it."""
        return f"/words={self.tokens} /pace={self.rate:g} /stamp /run={run}"


Schedules: TypeAlias = Mapping[str, list[tuple[int, int]]]
"""By topic, when its frames came, in nanoseconds of the monotonic clock, and their sizes in bytes."""
