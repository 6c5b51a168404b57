"""`infra/check_names.py` finds each kind of problem."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import ROOT

SOURCE = (
    '''"""Words of the old dialect."""

from typing import TypeAlias

MOST_THINGS = 3
Pair: TypeAlias = tuple[int, int]


class Vault:
    """Who keeps things."""


class Thread:
    """A thread."""

    def tall(self) -> None:
        """A long function."""
'''
    + "        pass\n" * 60
)


@pytest.fixture
def checker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The program, for a package of two modules and a page of two."""
    program = runpy.run_path(str(ROOT / "infra" / "check_names.py"))
    package, page = tmp_path / "app" / "khala", tmp_path / "app" / "web" / "src"
    clients = tmp_path / "app" / "clients" / "typescript"
    for folder in (package, page, clients / "client" / "src"):
        folder.mkdir(parents=True)
    (package / "old.py").write_text(SOURCE)
    (package / "other.py").write_text('"""Another."""\n\n\nclass Thread:\n    """A thread, too."""\n')
    (page / "one.ts").write_text("const MOST_ROWS = 3;\nexport interface Row {}\n")
    (page / "two.ts").write_text("export type Row = number;\n")
    (clients / "client" / "src" / "three.tsx").write_text("export class Row {}\n")
    found = program["problems"].__globals__
    places = {"ROOT": tmp_path, "PACKAGE": package, "CLIENT": tmp_path / "client", "PAGE": page, "CLIENTS": clients}
    for name, value in places.items():
        monkeypatch.setitem(found, name, value)
    return program


def test_each_kind_of_problem_is_found_once(checker: dict[str, Any], tmp_path: Path) -> None:
    found = sorted(checker["problems"]([tmp_path]))
    assert found == [
        "app/khala/old.py: the type Thread is also defined in app/khala/other.py",
        "app/khala/old.py:16: tall has 62 lines, more than 60",
        "app/khala/old.py:5: MOST_THINGS is obsolete: see docs/glossary.md",
        "app/khala/old.py:9: Vault is obsolete: see docs/glossary.md",
        "app/khala/old.py:9: the docstring begins with 'Who'",
        "app/web/src/one.ts: MOST_ROWS is obsolete: see docs/glossary.md",
        "app/web/src/one.ts: the type Row is also defined in app/web/src/two.ts, "
        "app/clients/typescript/client/src/three.tsx",
    ]


def test_only_the_given_paths_are_checked(checker: dict[str, Any], tmp_path: Path) -> None:
    assert list(checker["problems"]([tmp_path / "app" / "khala" / "none"])) == []


def test_each_row_of_the_glossary_is_read() -> None:
    program = runpy.run_path(str(ROOT / "infra" / "check_names.py"))
    rows = [line for line in (ROOT / "docs" / "glossary.md").read_text().splitlines() if line.startswith("| ")]
    words = {word for row in rows for word in re.findall(r"`(\w+)`", row.split("|")[4])}
    assert program["_obsolete_words"]() == words
    assert {"Pulse", "vault", "Doors"} <= words
