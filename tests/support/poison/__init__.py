"""Processes in which directives in a message block the event loop, end the process or exhaust its memory."""

import os
from pathlib import Path

from tests.support.forked import IMPORT_VARIABLE

POISONED = {
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]),
    IMPORT_VARIABLE: f"{__name__}.sitecustomize",
}
"""The environment of such processes, started or forked, and of the processes that they start."""
HARMLESS = {"PYTHONPATH": "", IMPORT_VARIABLE: ""}
"""What such an environment is combined with for a process that obeys no directives."""
