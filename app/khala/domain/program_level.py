"""The level of this version of the program: which runs and plans it can execute.

A run or plan that an older executor or driver would execute wrongly is stored with the level that it `needs`. Processes
only claim what needs their own level or a lower one, so that during an upgrade the rest waits for a newer process.

A change after which processes of the previous version would execute something wrongly increases `PROGRAM_LEVEL`, adds a
constant below, and stores it as `StoredRunOptions.needs` or `Created.needs` of the runs and plans concerned. Releases
before level 1 look at no level.
"""

STEP_LEVEL = 1
"""Runs of the steps of plans."""
REMOTE_LEVEL = 2
"""Runs of remote agents, which only remote workers execute."""
PROGRAM_LEVEL = REMOTE_LEVEL
"""The highest level of all."""
