"""The driver of plans: executes their steps as runs."""
