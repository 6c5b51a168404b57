"""Ends a process whose event loop hangs, so that whatever started it starts it again."""

from khala.watchdog.watchdog import EXIT_CODE, watched_loop

__all__ = ["EXIT_CODE", "watched_loop"]
