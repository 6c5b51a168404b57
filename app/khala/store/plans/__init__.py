"""Stored plans: their commands, the lease of their driver, and the runs of their steps."""
