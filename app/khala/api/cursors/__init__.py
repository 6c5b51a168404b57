"""One place in the log of a run, as the cursor of each protocol."""
