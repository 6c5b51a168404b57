"""The state of one claimed run while this process executes it."""

import asyncio
from contextlib import AbstractContextManager

from khala.domain import isolation_policy
from khala.domain.isolation_policy import Interruption
from khala.runs.approval_gate import ApprovalDecisions
from khala.signals import active_runs
from khala.store.runs.run_queue import ClaimedRun


class RunExecution:
    """One claimed run that is being executed. `stopped` gets the reason if the run has to stop before its end."""

    def __init__(self, claimed: ClaimedRun) -> None:
        self.claimed = claimed
        self.decisions = ApprovalDecisions()
        self.crashed = False
        """Whether the execution ended with an unhandled exception."""
        self.stopped: asyncio.Future[Interruption] = asyncio.get_running_loop().create_future()
        if claimed.canceled:
            self.stop(Interruption.CANCEL)

    @property
    def isolated(self) -> bool:
        """Whether the run has to be executed in a process of its own."""
        return isolation_policy.needs_isolation(self.claimed.lost)

    def tracked(self) -> AbstractContextManager[None]:
        """A context in which the metrics and traces of this process count the run as active."""
        return active_runs.track(
            self.claimed.lease.run_id,
            self.claimed.traceparent,
            waited=self.claimed.queued_seconds,
            attempt=self.claimed.lease.epoch,
            taken_over=self.claimed.taken_over,
            begun=self.claimed.next_seq > 0,
        )

    def stop(self, reason: Interruption) -> None:
        """Stop the run before its end. Only the first call has an effect."""
        if not self.stopped.done():
            self.stopped.set_result(reason)
