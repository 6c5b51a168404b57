"""The list of mutants matches the source, and the runner tells killed mutants from surviving ones."""

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutants.listed import MUTANTS
from tests.mutants.mutant import Mutant, problems
from tests.mutants.runner import Verdict, baseline, check_all, check_mutant
from tests.mutants.workspace import Workspace, workspaces

ROOT = Path(__file__).parents[2]
LEAST = 150
SUBJECT = """
def limited(number: int) -> int:
    return min(number, 10)
"""
TESTS = """
import time

from khala.subject import limited


def test_what_is_over_the_limit() -> None:
    assert limited(11) == 10


def test_nothing_in_particular() -> None:
    assert limited(5)


def test_what_ends_only_if_it_is_right() -> None:
    while limited(5) != 5:
        time.sleep(0.01)
"""


def test_each_mutant_can_be_applied_and_its_tests_exist() -> None:
    assert problems(MUTANTS, ROOT) == []


def test_every_layer_has_mutants() -> None:
    folders = Counter(mutant.folder for mutant in MUTANTS)
    assert len(MUTANTS) >= LEAST
    assert {folder for folder, count in folders.items() if count >= 10} == {
        "app/khala/domain", "app/khala/store", "app/khala/live", "app/khala/runs", "app/khala/api",
        "app/clients/typescript/client/src",
    }  # fmt: skip


def mutant(name: str = "one", test: str = "test_what_is_over_the_limit", **changes: str) -> Mutant:
    fields = {"file": "app/khala/subject.py", "old": "min(number, 10)", "new": "min(number, 11)", "why": "It matters."}
    return Mutant(name=name, tests=(f"tests/test_subject.py::{test}",), **(fields | changes))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A minimal source tree."""
    here = tmp_path / "tree"
    for folder in ("app/khala", "tests"):
        (here / folder).mkdir(parents=True)
        (here / folder / "__init__.py").write_text("")
    (here / "app" / "khala" / "subject.py").write_text(SUBJECT)
    (here / "tests" / "test_subject.py").write_text(TESTS)
    shutil.copytree(ROOT / "tests" / "mutants", here / "tests" / "mutants")
    (here / "app" / "web").mkdir()
    subprocess.run(["git", "init", "-q"], cwd=here, check=True)
    return here


@pytest.fixture
def workspace(tree: Path) -> Iterator[Workspace]:
    with workspaces(tree, 1, "postgresql://nowhere") as (space,):
        yield space


def test_an_error_in_the_list_is_reported(tree: Path) -> None:
    wrong = [
        mutant("moved", old="max(number, 10)"),
        mutant("twice", old="number"),
        mutant("same", new="min(number, 10)"),
        mutant("broken", new="min(number, 11"),
        mutant("untested", "test_none"),
        mutant("nowhere", file="app/khala/nothing.py"),
        mutant("same"),
    ]
    found = [problem.partition(":")[0] for problem in problems(wrong, tree)]
    assert found == ["same", "moved", "twice", "same", "broken", "untested", "nowhere"]
    assert problems([mutant()], tree) == []


def test_a_mutant_is_killed_or_survives_and_the_working_tree_is_unchanged(tree: Path, workspace: Workspace) -> None:
    listed = [mutant("caught"), mutant("missed", "test_nothing_in_particular"), mutant("again")]
    reported: list[str] = []
    assert baseline(workspace, listed) == []
    found = check_all([workspace], listed, lambda mutant_, verdict: reported.append(f"{mutant_.name} {verdict.state}"))
    assert sorted(reported) == ["again killed", "caught killed", "missed survived"]
    assert found["caught"].by == "tests/test_subject.py::test_what_is_over_the_limit"
    assert (tree / "app" / "khala" / "subject.py").read_text() == SUBJECT
    assert baseline(workspace, listed) == [], "the copy is restored"


def test_a_mutant_that_hangs_counts_as_killed_and_a_broken_one_does_not(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("tests.mutants.runner.MUTANT_SECONDS", 4.0)
        patched.setattr("tests.mutants.workspace.STOP_SECONDS", 0.2)
        hangs = check_mutant(workspace, mutant(new="max(number, 11)", test="test_what_ends_only_if_it_is_right"))
    assert (hangs.state, hangs.by) == ("timeout", "the tests did not end within 4 s")
    unfit = check_mutant(workspace, mutant(old="def limited", new="def unlimited"))
    assert unfit.state == "broken", "no test judged it"
    assert isinstance(check_mutant(workspace, mutant()), Verdict)


def test_a_test_that_fails_without_a_mutant_is_reported(tree: Path) -> None:
    (tree / "tests" / "test_subject.py").write_text(TESTS.replace("== 10", "== 12"))
    with workspaces(tree, 1, "postgresql://nowhere") as (space,):
        (problem,) = baseline(space, [mutant()])
    assert problem.startswith("killed without a mutant: tests/test_subject.py")
