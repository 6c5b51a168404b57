"""The list of what must work names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_rows_name_exists() -> None:
    rows = (ROOT / "docs" / "rows.md").read_text()
    found = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    missing = [name for name in re.findall(r"`(test_\w+)`", rows) if f"def {name}(" not in found]
    assert missing == []
    assert all((ROOT / name).exists() for name in re.findall(r"`((?:tests|app/web/src)/[\w/.]+)`", rows))
