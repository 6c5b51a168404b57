"""The size of a filled deployment, and the ids of its users and threads that measurements name."""

from uuid import UUID

import msgspec

DEFAULT_THREADS = 50_000
LARGE_THREADS = 500_000
MAX_SHARE = 20_000
"""Threads of the long list and deleted threads, at most: the sizes that the targets name."""
MAX_DEEP_MESSAGES = 20_001
MAX_QUEUED = 4_000
MAX_ACTIVE = 5_000

COLLECTOR_ID = UUID("00000000-0000-7000-8000-000000000001")
"""The user with the long thread list."""
HISTORIAN_ID = UUID("00000000-0000-7000-8000-000000000002")
"""The user whose only thread is the deep one."""
DEEP_THREAD_ID = UUID("00000000-0000-7000-8000-000000000003")


class DeploymentSize(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows of each kind a deployment has.

    `listed` threads are on the list of one user, `deleted` ones wait for their purge; the others belong to users and
    guests, and `runs` is how many runs each of those has. The deep thread comes on top.
    """

    threads: int
    listed: int
    deleted: int
    runs: int
    users: int
    deep_messages: int
    queued: int
    active: int

    @classmethod
    def of(cls, threads: int) -> "DeploymentSize":
        """The usual proportions, up to the sizes that the targets name."""
        return cls(
            threads=threads,
            listed=min(MAX_SHARE, threads * 2 // 5),
            deleted=min(MAX_SHARE, threads * 2 // 5),
            runs=6,
            users=max(20, threads // 20),
            deep_messages=min(MAX_DEEP_MESSAGES, threads * 2 // 5 // 2 * 2 + 1),
            queued=min(MAX_QUEUED, threads * 2 // 25),
            active=min(MAX_ACTIVE, threads // 10),
        )

    @property
    def deep_runs(self) -> int:
        """Runs of the deep thread: its first message is the welcome message, which no run has written."""
        return (self.deep_messages - 1) // 2
