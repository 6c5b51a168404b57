"""Reads JSON lines from a file that another process is still writing."""

import json
from pathlib import Path
from typing import Any


def whole_lines(path: Path) -> list[str]:
    """The complete lines of a file; none if there is no file."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def objects(path: Path) -> list[dict[str, Any]]:
    """The lines that are JSON objects, parsed. Other lines are ignored."""
    return [json.loads(line) for line in whole_lines(path) if line.startswith("{")]
