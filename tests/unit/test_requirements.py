"""The requirements and the security page name tests and files that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_table_of_acting_for_others_names_exists() -> None:
    section = (ROOT / "docs" / "security.md").read_text().partition("## Acting with another's rights")[2]
    found = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    names = re.findall(r"`(test_\w+)`", section)
    assert names
    assert [name for name in names if f"def {name}(" not in found] == []
    files = [f"tests/integration/{name}" for name in re.findall(r"`(test_\w+\.py)`", section)]
    files += re.findall(r"`((?:app|tests)/[\w/.-]+)`", section)
    assert [name for name in files if not (ROOT / name).exists()] == []


def test_every_test_that_the_requirements_name_exists() -> None:
    listed = (ROOT / "docs" / "requirements.md").read_text()
    found = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    missing = [name for name in re.findall(r"`(test_\w+)`", listed) if f"def {name}(" not in found]
    assert missing == []
    assert all((ROOT / name).exists() for name in re.findall(r"`((?:tests|app/web/src|app/clients)/[\w/.-]+)`", listed))
