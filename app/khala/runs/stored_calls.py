"""Finds the stored calls of an agent in Python, whose function is called again after an interruption."""

from collections import Counter
from itertools import islice
from typing import NamedTuple
from uuid import UUID, uuid5

from khala.domain.run_progress import RunProgress, RunStep, ToolCallProgress


class FoundCall(NamedTuple):
    """A call, and the step that it is in."""

    step: RunStep
    call: ToolCallProgress


class StoredCalls:
    """The stored calls of one run."""

    def __init__(self, progress: RunProgress, run_id: UUID) -> None:
        self._progress = progress
        self._run_id = run_id
        self._counts: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """The calls that the function has made since it was called."""
        return self._counts.total()

    def next_place(self, name: str) -> int:
        """The place of a new call among the calls of this name, from 1 on."""
        self._counts[name] += 1
        return self._counts[name]

    def at(self, name: str, place: int) -> FoundCall | None:
        """The stored call at this place among the calls of this name."""
        calls = (FoundCall(step, call) for step in self._progress.steps for call in step.calls if call.tool == name)
        return next(islice(calls, place - 1, None), None)

    def keyed(self, key: str) -> FoundCall | None:
        """The stored call with this key, or with this id."""
        ids = key, self.id_of(key)
        steps = self._progress.steps
        return next((FoundCall(step, call) for step in steps for call in step.calls if call.id in ids), None)

    def id_of(self, key: str) -> str:
        """The id of the call with this key."""
        return f"call_{uuid5(self._run_id, key).hex}"
