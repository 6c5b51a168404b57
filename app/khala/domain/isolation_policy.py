"""Isolation policy: when a run gets a process of its own, and the outcome of a run whose own process has ended."""

from enum import Enum

MAX_SHARED_LOSSES = 2
"""Executors that a run may lose before it is executed in a process of its own."""


class Interruption(Enum):
    """The reason why the execution of a run stops before its end."""

    CANCEL = "cancel"
    HAND_OVER = "hand_over"
    LOST = "lost"


class IsolatedOutcome(Enum):
    """The outcome of a run whose own process has ended without settling it."""

    DONE = "done"
    """Nothing to do: the run has ended, is blocked or was handed over, or another executor has it."""
    CANCEL = "cancel"
    HAND_OVER = "hand_over"
    INTERRUPTED = "interrupted"
    """The run caused the end of its process, so the run is ended, too."""
    DROPPED = "dropped"
    """The run did not cause the end of its process, so its lease lapses and another executor takes over."""


def needs_isolation(lost: int) -> bool:
    """Whether a run that has lost this number of executors is executed in a process of its own."""
    return lost >= MAX_SHARED_LOSSES


def isolated_outcome(*, held: bool, stopped: Interruption | None, began: bool, exit_code: int) -> IsolatedOutcome:
    """The outcome of a run whose own process has ended.

    `held`: whether the run's lease is still valid. `stopped`: the reason for which the process was told to stop.
    `began`: whether the process had begun to execute the run. `exit_code` is 0 if the process gave the run up itself.
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
    """The outcome of a run that another process executed. `status` is the run's status; None if the run is deleted."""
    match status:
        case None | "running":
            return Interruption.LOST.value
        case "queued":
            return Interruption.HAND_OVER.value
        case _:
            return status
