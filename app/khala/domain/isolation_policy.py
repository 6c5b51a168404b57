"""Decides where a run is executed after executors were lost over it, and what a lost process of its own means."""

from enum import Enum

MAX_SHARED_LOSSES = 2
"""Executors that may be lost over a run before it is executed in a process of its own."""


class Interruption(Enum):
    """Why work on a run stops before its end."""

    CANCEL = "cancel"
    HAND_OVER = "hand_over"
    LOST = "lost"


class IsolatedOutcome(Enum):
    """What becomes of a run whose own process has ended, where that process had not seen to it."""

    DONE = "done"
    """Nothing: the run has ended, waits or was handed over, or another executor has it."""
    CANCEL = "cancel"
    HAND_OVER = "hand_over"
    INTERRUPTED = "interrupted"
    """The run ended its process, so it is ended itself."""
    DROPPED = "dropped"
    """The lease lapses and an executor takes the run over: the process was not lost by what it executed."""


def needs_isolation(lost: int) -> bool:
    """Whether a run over which so many executors were lost is executed in a process of its own."""
    return lost >= MAX_SHARED_LOSSES


def isolated_outcome(*, held: bool, stopped: Interruption | None, began: bool, exit_code: int) -> IsolatedOutcome:
    """What becomes of the run now that its own process has ended.

    `held`: whether the lease under which it was executed still holds. `stopped`: why the process was asked to stop.
    `began`: whether it had begun to execute the run. `exit_code` is 0 where it gave the run up by itself.
    """
    if not held:
        return IsolatedOutcome.DONE
    match stopped:
        case Interruption.CANCEL:
            return IsolatedOutcome.CANCEL
        case Interruption.HAND_OVER:
            return IsolatedOutcome.HAND_OVER
        case Interruption.LOST:
            return IsolatedOutcome.DROPPED
        case None:
            return IsolatedOutcome.INTERRUPTED if began and exit_code != 0 else IsolatedOutcome.DROPPED


def outcome_in_other_process(status: str | None) -> str:
    """What became of a run that another process executed, by the state it is in; None where it is gone."""
    match status:
        case None | "running":
            return Interruption.LOST.value
        case "queued":
            return Interruption.HAND_OVER.value
        case _:
            return status
