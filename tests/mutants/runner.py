"""Runs the tests of mutants, and determines whether a test detects each mutant."""

import re
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, TypeAlias

import msgspec

from tests.mutants.mutant import CLIENT, Mutant
from tests.mutants.workspace import Workspace

MUTANT_SECONDS = 150.0
"""Time limit for the tests of one mutant. If they exceed it, the mutant counts as killed."""
BASELINE_SECONDS = 3600.0
"""Time limit for all tests together without a mutant."""

PASSED, FAILED = 0, 1
"""Exit statuses of pytest and vitest; with any other status, pytest has run no test."""

State: TypeAlias = Literal["killed", "timeout", "survived", "broken"]


class Verdict(msgspec.Struct, frozen=True):
    """The result of a run of tests: `by` is the test that failed, or the reason why no test could run."""

    state: State
    by: str
    seconds: float


class VitestReport(msgspec.Struct, rename="camel"):
    """The counts of vitest's JSON report."""

    num_total_tests: int
    num_failed_tests: int


def check_mutant(workspace: Workspace, mutant: Mutant) -> Verdict:
    """Run the tests of a mutant in a workspace with its fault."""
    with workspace.mutated(mutant):
        verdicts = [_run(workspace, tests, MUTANT_SECONDS) for tests in _kinds(mutant.tests)]
    return next((one for one in verdicts if one.state != "survived"), verdicts[-1])


def baseline(workspace: Workspace, mutants: Iterable[Mutant]) -> list[str]:
    """The failures of the tests without a mutant, which would make all verdicts meaningless."""
    tests = dict.fromkeys(test for mutant in mutants for test in mutant.tests)
    found = [_run(workspace, kind, BASELINE_SECONDS) for kind in _kinds(tests)]
    return [f"{one.state} without a mutant: {one.by}" for one in found if one.state != "survived"]


def check_all(
    spaces: Sequence[Workspace], mutants: Sequence[Mutant], report: Callable[[Mutant, Verdict], None]
) -> dict[str, Verdict]:
    """The verdicts by name. Each workspace tests one mutant at a time; `report` receives each verdict when it comes."""
    free: SimpleQueue[Workspace] = SimpleQueue()
    for space in spaces:
        free.put(space)

    def check_in_free_space(mutant: Mutant) -> Verdict:
        space = free.get()
        try:
            return check_mutant(space, mutant)
        finally:
            free.put(space)

    verdicts: dict[str, Verdict] = {}
    with ThreadPoolExecutor(len(spaces)) as pool:
        work = {pool.submit(check_in_free_space, mutant): mutant for mutant in mutants}
        for done in as_completed(work):
            mutant = work[done]
            verdicts[mutant.name] = verdict = done.result()
            report(mutant, verdict)
    return verdicts


def _kinds(tests: Iterable[str]) -> list[list[str]]:
    """Split the tests into those of Python and those of the TypeScript client; empty groups are left out."""
    python: list[str] = []
    client: list[str] = []
    for test in tests:
        (client if test.startswith(CLIENT) else python).append(test)
    return [kind for kind in (python, client) if kind]


def _run(workspace: Workspace, tests: Sequence[str], seconds: float) -> Verdict:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="khala-mutant-report-") as folder:
        report = Path(folder) / "report.json"
        status, output = workspace.run(tests, report, seconds)
        if status is None:
            return Verdict("timeout", f"the tests did not end within {seconds:.0f} s", time.monotonic() - began)
        state, by = _vitest(status, report, output) if tests[0].startswith(CLIENT) else _pytest(status, output)
    return Verdict(state, by, time.monotonic() - began)


def _pytest(status: int, output: str) -> tuple[State, str]:
    if status == PASSED:
        return "survived", ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    if status != FAILED or failed is None:
        return "broken", _end_of(output)
    return ("timeout" if "Failed: Timeout" in output else "killed"), failed[1]


def _vitest(status: int, report: Path, output: str) -> tuple[State, str]:
    if not report.is_file():
        return "broken", _end_of(output)
    counts = msgspec.json.decode(report.read_bytes(), type=VitestReport)
    if not counts.num_total_tests:
        return "broken", "vitest found no test: the mutant does not compile, or the file does not exist"
    if counts.num_failed_tests:
        return "killed", f"{counts.num_failed_tests} of {counts.num_total_tests} tests of vitest"
    return ("survived", "") if status == PASSED else ("killed", "an error outside all tests of vitest")


def _end_of(output: str) -> str:
    return " | ".join(output.strip().splitlines()[-5:])
