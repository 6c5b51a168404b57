"""Files of lines that another process still writes."""

import json
from pathlib import Path
from typing import Any


def whole_lines(path: Path) -> list[str]:
    """Its lines, without one that isn't all there yet; none if there is no file."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def objects(path: Path) -> list[dict[str, Any]]:
    """Those of them that are JSON objects, read; others are somebody else's."""
    return [json.loads(line) for line in whole_lines(path) if line.startswith("{")]
