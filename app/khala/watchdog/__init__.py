"""Ends a process whose event loop hangs, so that its supervisor restarts it."""

from khala.watchdog.watchdog import EXIT_CODE, watched_loop

__all__ = ["EXIT_CODE", "watched_loop"]
