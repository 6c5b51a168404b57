"""Follows a plan until it ends or pauses, shows it, and handles interrupts."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator
from typing import Protocol

import msgspec

from khala.console import KnownFailure
from khala.domain.plans.views import PlanEntry, PlanEventEntry
from khala.operations.plan_client.api import PlanApiClient, RequestRefused, ServerUnreachable
from khala.operations.plan_client.feed import (
    FIRST_RETRY_SECONDS,
    MAX_DISCONNECTED_SECONDS,
    MAX_RETRY_SECONDS,
    Disconnected,
    ThreadEventStream,
)
from khala.operations.plan_client.view_state import FeedFrame, PlanViewState

DOUBLE_INTERRUPT_SECONDS = 1.0
LAST_REQUEST_SECONDS = 1.0
"""Time that a view which is left at once gives the request to pause."""
PAUSING = (
    "Pausing after the steps under way. To interrupt them: khala plan pause --force."
    " Press Ctrl-C twice to leave this view."
)


class PlanView(Protocol):
    """Shows a plan: in full on a terminal, as lines elsewhere."""

    def show(self, state: PlanViewState) -> None:
        """Show the plan as it is now."""

    def add_event(self, event: PlanEventEntry) -> None:
        """Show an event. Each is shown once, in order."""

    def notice(self, text: str) -> None:
        """Show a notice about the view itself. An empty one ends the notice before it."""


class WatchResult(msgspec.Struct, frozen=True):
    """The plan when its view ended, and the signal that ended the view, if one did."""

    plan: PlanEntry
    received: signal.Signals | None = None


class PlanWatcher:
    """Follows one plan.

    `after_event`: the events after this one are shown. `pauses`: an interrupt pauses the plan before the view ends.
    """

    def __init__(
        self, client: PlanApiClient, state: PlanViewState, view: PlanView, *, after_event: int, pauses: bool
    ) -> None:
        self._client = client
        self._state = state
        self._view = view
        self._pauses = pauses
        self._shown_seq = after_event
        self._signal: signal.Signals | None = None
        self._interrupted_at = -DOUBLE_INTERRUPT_SECONDS
        self._pause: asyncio.Task[None] | None = None
        self._follow: asyncio.Task[None] | None = None
        self._is_disconnected = False

    async def run(self) -> WatchResult:
        """Follow the plan until it has stopped, is paused, or the person leaves. Raises the errors of the server."""
        self._follow = asyncio.create_task(self._follow_plan())
        try:
            with self._signals():
                await self._follow
        except asyncio.CancelledError:
            if self._signal is None:
                raise
        finally:
            self._follow.cancel()
            await self._finish_pause()
        return WatchResult(self._state.plan, self._signal)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in handled:
            loop.add_signal_handler(number, self._handle_signal, number)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def _handle_signal(self, number: signal.Signals) -> None:
        assert self._follow is not None
        now = time.monotonic()
        is_double = now - self._interrupted_at <= DOUBLE_INTERRUPT_SECONDS
        self._interrupted_at = now
        self._signal = number
        if is_double or not self._pauses or number != signal.SIGINT:
            self._follow.cancel()
        elif self._pause is None or self._pause.done():
            self._view.notice(PAUSING)
            self._pause = asyncio.create_task(self._request_pause())

    async def _request_pause(self) -> None:
        try:
            plan = await self._client.command(self._state.plan.id, "pause", {"force": False})
            if plan.revision > self._state.plan.revision:
                self._state.plan = plan
        except KnownFailure as error:
            self._view.notice(f"The plan does not pause: {error.message} Press Ctrl-C to try again, twice to leave.")

    async def _finish_pause(self) -> None:
        if self._pause is not None:
            await asyncio.wait([self._pause], timeout=LAST_REQUEST_SECONDS)
            self._pause.cancel()

    async def _follow_plan(self) -> None:
        """Apply the frames of the thread's feed until the plan ends or pauses."""
        # A snapshot has what the steps under way have written so far.
        revision = None if self._state.running else self._state.plan.revision
        feed = ThreadEventStream(self._client, self._state.plan.thread_id, revision)
        await self._apply(None)
        async with contextlib.aclosing(feed.items()) as items:
            while not self._ended:
                item = await anext(items)
                if isinstance(item, Disconnected):
                    self._notice_loss(item.reason)
                    continue
                await self._apply(item)
                if item.type == "skipped":
                    feed.revision = self._state.plan.revision

    def _notice_loss(self, reason: str) -> None:
        self._is_disconnected = True
        self._view.notice(f"The connection is lost ({reason}). Connecting again.")

    @property
    def _ended(self) -> bool:
        return self._state.plan.status in ("idle", "paused", "stopped")

    async def _apply(self, frame: FeedFrame | None) -> None:
        """Apply a frame, and show the plan and its new events. Reads what the frame lacks, until the server answers."""
        is_incomplete = frame is not None and self._state.apply(frame)
        started, seconds = time.monotonic(), FIRST_RETRY_SECONDS
        while True:
            try:
                if is_incomplete:
                    plan = await self._client.plan(self._state.plan.id)
                    self._state.replace(plan, await self._client.steps(plan.id))
                    is_incomplete = False
                await self._show_events(frame)
                break
            except (RequestRefused, ServerUnreachable) as error:
                is_final = isinstance(error, RequestRefused) and not error.is_temporary
                if is_final or time.monotonic() - started > MAX_DISCONNECTED_SECONDS:
                    raise
                self._notice_loss(error.message)
            await asyncio.sleep(seconds)
            seconds = min(MAX_RETRY_SECONDS, 2 * seconds)
        if self._is_disconnected:
            self._is_disconnected = False
            self._view.notice("")
        self._view.show(self._state)

    async def _show_events(self, frame: FeedFrame | None) -> None:
        """Show the new events: from the frame, or from the server if the frame has not all of them."""
        plan = self._state.plan
        events = frame.plan_events or () if frame is not None else ()
        known = {event.seq: event for event in events if event.plan_id == plan.id}
        missing = range(self._shown_seq + 1, plan.event_seq + 1)
        if all(seq in known for seq in missing):
            for seq in missing:
                self._show_event(known[seq])
            return
        async for event in self._client.events(plan.id, self._shown_seq):
            self._show_event(event)

    def _show_event(self, event: PlanEventEntry) -> None:
        self._shown_seq = event.seq
        self._view.add_event(event)
