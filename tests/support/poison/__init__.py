"""Processes in which directives in a message block the event loop, end the process or exhaust its memory."""

import os
from pathlib import Path

POISONED = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])}
"""The environment of such processes."""
