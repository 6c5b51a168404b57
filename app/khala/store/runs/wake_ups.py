"""Wake-ups that go beside Postgres: what a group commit has to tell after it, where its transaction did not notify."""

from collections.abc import Container, Iterator, Sequence
from typing import Protocol
from uuid import UUID

from khala.store.postgres.database import RUNS_CHANNEL, THREADS_CHANNEL
from khala.store.runs.parts import Batch


class Bus(Protocol):
    """A way to listeners beside Postgres. It wakes, and promises no more than that."""

    @property
    def connected(self) -> bool:
        """Whether what is told now goes out."""

    async def tell(self, channel: str, payload: str) -> None:
        """Wake who hears this channel, without waiting for anybody."""


def wakes(batches: Sequence[Batch], written: Container[UUID]) -> Iterator[tuple[str, str]]:
    """By channel, what these runs' batches have changed; also those that were there, whose commit went unheard."""
    told = [batch for batch in batches if batch.lease.run_id in written]
    if told:
        yield THREADS_CHANNEL, ",".join({str(batch.lease.thread_id) for batch in told})
    if any(batch.ending for batch in told):
        yield RUNS_CHANNEL, ""
