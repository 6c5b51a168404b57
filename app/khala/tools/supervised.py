"""Supervised programs: see `process_supervisor`."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

SUPERVISOR = Path(__file__).with_name("process_supervisor.py")


class ProgramNotFoundError(Exception):
    """The program does not exist, or is not executable."""


def supervised(command: Sequence[str], grace_seconds: float) -> list[str]:
    """The command line that runs `command` under a supervisor, which ends all its descendants with this process.

    `grace_seconds` is the time between SIGTERM and SIGKILL.
    """
    return [sys.executable, "-I", "-S", str(SUPERVISOR), str(os.getpid()), str(grace_seconds), *command]
