"""Telemetry: where what a process tells of itself goes: logs, metrics and traces."""

from khala.telemetry.logs import configure

__all__ = ["configure"]
