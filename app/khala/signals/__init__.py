"""Metrics and traces of a process. This package is the lowest layer, so every other package may use it."""
