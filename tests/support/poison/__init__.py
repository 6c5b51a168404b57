"""Processes in which a message of the right words blocks the event loop, ends the process or eats its memory."""

import os
from pathlib import Path

POISONED = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])}
"""The environment that makes it so, of processes that are begun anew."""
