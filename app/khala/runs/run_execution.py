"""One claimed run that an executor works on."""

import asyncio
from contextlib import AbstractContextManager

from khala.domain import isolation_policy
from khala.domain.isolation_policy import Interruption
from khala.runs.tool_executor import ApprovalDecisions
from khala.signals import active_runs
from khala.store.runs.runs import Claimed


class RunExecution:
    """One claimed run being worked on."""

    def __init__(self, claimed: Claimed) -> None:
        self.claimed = claimed
        self.answers = ApprovalDecisions()
        self.crashed = False
        """Whether it ended with an unhandled exception."""
        self.stopped: asyncio.Future[Interruption] = asyncio.get_running_loop().create_future()
        if claimed.canceled:
            self.stop(Interruption.CANCEL)

    @property
    def isolated(self) -> bool:
        """Whether the run is to be executed in a process of its own."""
        return isolation_policy.needs_isolation(self.claimed.lost)

    def told(self) -> AbstractContextManager[None]:
        """The run is under way, for the metrics and traces of this process, while this is open."""
        return active_runs.working(
            self.claimed.lease.run_id,
            self.claimed.traceparent,
            waited=self.claimed.queued_seconds,
            attempt=self.claimed.lease.epoch,
            taken_over=self.claimed.taken_over,
            begun=self.claimed.next_seq > 0,
        )

    def stop(self, why: Interruption) -> None:
        """Ask for an early end; the first reason stands."""
        if not self.stopped.done():
            self.stopped.set_result(why)
