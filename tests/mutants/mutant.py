"""A mutant: one small fault in one file, and the tests that must detect it."""

import ast
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

CLIENT = "app/clients/typescript/"
"""vitest runs the tests in this folder; pytest runs all others."""


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """Replaces `old`, which must occur exactly once in `file`, by `new`. `why` is the effect on users.

    `tests` are pytest node ids, or test files of the TypeScript client.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str

    @property
    def folder(self) -> str:
        """The folder in whose score the mutant counts; sub-packages count for their package in `app/khala`."""
        parent = Path(self.file).parent
        return str(Path(*parent.parts[:3]) if parent.parts[:2] == ("app", "khala") else parent)

    def applied(self, text: str) -> str:
        """The file's text with the fault. Raises `ValueError` if `old` does not occur exactly once."""
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.name}: its old text occurs {count} times in {self.file}, not once")
        return text.replace(self.old, self.new)


def problems(mutants: Sequence[Mutant], root: Path) -> list[str]:
    """Problems of the list: duplicate names, old texts that are not found, tests that do not exist."""
    repeated = [name for name, count in Counter(one.name for one in mutants).items() if count > 1]
    found = [f"{name}: another mutant has the same name" for name in repeated]
    found += [problem for one in mutants for problem in _problems_of(one, root)]
    return found


def _problems_of(mutant: Mutant, root: Path) -> list[str]:
    path = root / mutant.file
    if not path.is_file():
        return [f"{mutant.name}: the file {mutant.file} does not exist"]
    found = [f"{mutant.name}: {test} does not exist" for test in mutant.tests if not _exists(test, root)]
    if not mutant.tests or not mutant.why:
        found.append(f"{mutant.name}: it needs tests and a reason")
    try:
        text = mutant.applied(path.read_text())
        if mutant.old == mutant.new:
            found.append(f"{mutant.name}: it changes nothing")
        if path.suffix == ".py":
            ast.parse(text)
    except (ValueError, SyntaxError) as error:
        found.append(str(error) if isinstance(error, ValueError) else f"{mutant.name}: it is not valid Python: {error}")
    return found


def _exists(test: str, root: Path) -> bool:
    file, _, name = test.partition("::")
    path = root / file
    if not path.is_file():
        return False
    function = name.partition("[")[0]
    return not function or re.search(rf"def {re.escape(function)}\(", path.read_text()) is not None
