"""Signals: what a process tells of itself, in numbers and in traces. It is below everything, so that all may tell."""
