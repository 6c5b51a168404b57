"""A workload: runs of one model server with a number of observers each, through Khala and through each baseline."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

Baseline: TypeAlias = Literal["bare", "flush", "token"]
BASELINES: tuple[Baseline, ...] = ("bare", "flush", "token")
WARM_UP = "/words=3 /pace=0"
"""The prompt of a run before the measurement."""
RUNS_PER_SECOND = 50
"""Runs that start in a second, if the answers are long enough, so that the start is no peak of its own."""


class Workload(msgspec.Struct, frozen=True):
    """A number of runs, each in a thread of its own, and the observers of each."""

    runs: int
    observers: int

    @property
    def name(self) -> str:
        """The name on the command line and in reports."""
        return f"{self.runs}x{self.observers}"

    @classmethod
    def of(cls, text: str) -> "Workload":
        """Parse a name. Raises `ValueError`."""
        runs, _, observers = text.replace("×", "x").partition("x")
        return cls(int(runs), int(observers))


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of each run: `rate` in tokens a second, and its length in `seconds`."""

    rate: float = 30.0
    seconds: float = 10.0
    drivers: int = 1
    """Processes that run the observers."""
    together: bool = False
    """One process serves and executes runs."""
    baselines: tuple[Baseline, ...] = BASELINES

    @property
    def tokens(self) -> int:
        """The number of tokens of one run."""
        return max(1, round(self.rate * self.seconds))

    @property
    def pause(self) -> float:
        """Delay of the model before its first token, in seconds."""
        return 1 / self.rate

    def ramp(self, runs: int) -> float:
        """Seconds within which all runs start, evenly, so that they do not flush at the same time."""
        return min(self.seconds / 2, max(1.0, runs / RUNS_PER_SECOND))

    def steady(self, runs: int) -> tuple[float, float]:
        """Start and end of the time in which all runs are active, with a margin, in seconds after the first start."""
        margin = self.seconds / 20
        return self.ramp(runs) + margin, self.seconds - margin

    def prompt(self, run: int) -> str:
        """The prompt of a run, which identifies it to the model server."""
        return f"/words={self.tokens} /pace={self.rate:g} /stamp /run={run}"


Schedules: TypeAlias = Mapping[str, list[tuple[int, int]]]
"""By topic, the time of each frame in nanoseconds of the monotonic clock, and its size in bytes."""
