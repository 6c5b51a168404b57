"""Durable streams: their rows, contents, appends, forks and removal."""
