"""The views of `khala plan`: a screen on a terminal, lines for people elsewhere, and lines of JSON for programs."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import click
import msgspec
from rich.console import Console
from rich.live import Live

from khala.domain.plans.views import PlanEventEntry
from khala.operations.plan_client.event_lines import compact, event_line
from khala.operations.plan_client.plan_screen import ScreenSize, draw
from khala.operations.plan_client.view_state import PlanViewState

MIN_REFRESH_SECONDS = 0.1
MAX_REFRESH_SECONDS = 1.0
HELP = "Ctrl-C pauses the plan, twice leaves this view"
LEAVE_HELP = "Ctrl-C leaves this view"


def can_draw() -> bool:
    """Whether standard output is a terminal that can move its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class EventLineView:
    """One line for each event on standard output. Notices go to standard error."""

    def show(self, state: PlanViewState) -> None:
        """Print nothing: the events say all."""

    def add_event(self, event: PlanEventEntry) -> None:
        """Print the event."""
        click.echo(event_line(event))

    def notice(self, text: str) -> None:
        """Print the notice."""
        if text:
            click.echo(text, err=True)


class EventJsonView(EventLineView):
    """One JSON object for each event."""

    def add_event(self, event: PlanEventEntry) -> None:
        """Print the event."""
        click.echo(msgspec.json.encode(compact(event)))


class ScreenView:
    """Draws the plan on the terminal's alternate screen, at most 10 times a second."""

    def __init__(self, console: Console, *, pauses: bool) -> None:
        self._console = console
        self._help = HELP if pauses else LEAVE_HELP
        self._live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False)
        self._state: PlanViewState | None = None
        self._notice = ""
        self._timer: asyncio.TimerHandle | None = None
        self._drawn_at = -MIN_REFRESH_SECONDS

    @contextlib.contextmanager
    def opened(self) -> Iterator["ScreenView"]:
        """Show the screen while the context is open, and restore the terminal after it."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGWINCH, self._refresh_soon)
        try:
            with self._live:
                yield self
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)
            if self._timer is not None:
                self._timer.cancel()

    def show(self, state: PlanViewState) -> None:
        """Draw the plan."""
        self._state = state
        self._refresh_soon()

    def add_event(self, event: PlanEventEntry) -> None:
        """Draw nothing: the plan itself says all."""

    def notice(self, text: str) -> None:
        """Draw the notice below the control line."""
        self._notice = text
        self._refresh_soon()

    def _refresh_soon(self) -> None:
        now = asyncio.get_running_loop().time()
        self._schedule(max(now, self._drawn_at + MIN_REFRESH_SECONDS))

    def _schedule(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(at, self._refresh)

    def _refresh(self) -> None:
        """Draw the plan. Times on the screen change, so the next time is in a second at the latest."""
        self._drawn_at = asyncio.get_running_loop().time()
        self._schedule(self._drawn_at + MAX_REFRESH_SECONDS)
        if self._state is None:
            return
        columns, lines = self._console.size
        size = ScreenSize(columns, lines, ascii_only=self._console.options.ascii_only)
        self._live.update(draw(self._state, size, datetime.now(UTC), self._notice or self._help), refresh=True)
