"""Runs: executors that claim them, and the turn in which a model answers."""
