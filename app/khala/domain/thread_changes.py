"""The state of a thread at one revision, and its changes between two, as every transport sends them."""

from collections.abc import Sequence

import msgspec

from khala.domain.chat import Message, Thread, WireStruct
from khala.domain.parts import Part
from khala.domain.plans.views import PlanEntry, PlanEventEntry, StepProgress


class Snapshot(WireStruct, frozen=True, kw_only=True):
    """A thread at one revision, with its newest messages in order, and its newest plans, the newest first."""

    revision: int
    thread: Thread
    messages: tuple[Message, ...]
    has_more: bool
    reset: bool = False
    plans: Sequence[PlanEntry] = ()


class Delta(WireStruct, frozen=True, kw_only=True):
    """The changes of a thread after revision `since`, up to and including `revision`.

    `plans` has all plans that have changed, `plan_steps` the progress of their changed steps, and `plan_events` their
    new events. `plan_steps` and `plan_events` are null where there are too many: then they are to be read over REST.
    """

    since: int = msgspec.field(name="from")
    revision: int
    thread: Thread | None = None
    messages: tuple[Message, ...]
    parts: tuple[Part, ...]
    plans: Sequence[PlanEntry] = ()
    plan_steps: Sequence[StepProgress] | None = ()
    plan_events: Sequence[PlanEventEntry] | None = ()
