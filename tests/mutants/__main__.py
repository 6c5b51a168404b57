"""Measures the mutation score: `python -m tests.mutants [--only NAME] [--folder FOLDER] [--workers N] [--check]`.

The exit status is 1 if fewer than 97 % of the mutants are killed. It is 2 if the list is wrong, a test fails without a
mutant, or the tests of a mutant could not run.
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from tests.mutants.listed import MUTANTS
from tests.mutants.mutant import Mutant, problems
from tests.mutants.runner import Verdict, baseline, check_all
from tests.mutants.workspace import Workspace, workspaces
from tests.support import postgres

ROOT = Path(__file__).parents[2]
MIN_SCORE = 0.97
WORKERS = 2
SURVIVED, FAILED = 1, 2
"""Exit statuses."""


def main() -> int:
    """Test the chosen mutants, or all; returns the exit status."""
    args = _parse_arguments()
    chosen = [mutant for mutant in MUTANTS if _matches(mutant.name, args.only) and _matches(mutant.folder, args.folder)]
    errors = problems(chosen, ROOT) or ([] if chosen else ["no mutant was chosen"])
    if not errors and not args.check:
        return _run(chosen, args.workers, run_baseline=not args.skip_baseline)
    print("\n".join(errors) or f"All {len(chosen)} mutants can be applied.")
    return FAILED if errors else 0


def _matches(text: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(text, pattern) for pattern in patterns)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Mutation score of Khala.")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="a mutant, or a pattern such as *-lease*"
    )
    parser.add_argument("--folder", action="append", default=[], metavar="FOLDER", help="only mutants of this folder")
    parser.add_argument("--workers", type=int, default=WORKERS, help="number of mutants that are tested concurrently")
    parser.add_argument("--skip-baseline", action="store_true", help="do not run the tests without a mutant first")
    parser.add_argument("--check", action="store_true", help="only check that each mutant can be applied")
    return parser.parse_args()


def _run(mutants: Sequence[Mutant], workers: int, *, run_baseline: bool) -> int:
    began = time.monotonic()
    with postgres.server() as url, workspaces(ROOT, max(1, min(workers, len(mutants))), url) as spaces:
        failing = _baseline(spaces[0], mutants) if run_baseline else []
        if failing:
            print("\n".join(failing))
            return FAILED
        verdicts = check_all(spaces, mutants, _report)
    return _summary(mutants, verdicts, time.monotonic() - began)


def _baseline(space: Workspace, mutants: Sequence[Mutant]) -> list[str]:
    began = time.monotonic()
    print(f"{len(mutants)} mutants; first their tests without a mutant …", flush=True)
    found = baseline(space, mutants)
    if not found:
        print(f"They pass, in {time.monotonic() - began:.0f} s.", flush=True)
    return found


def _report(mutant: Mutant, verdict: Verdict) -> None:
    print(f"{verdict.state:8}  {mutant.name}  {verdict.by} ({verdict.seconds:.1f} s)", flush=True)


def _summary(mutants: Sequence[Mutant], verdicts: Mapping[str, Verdict], seconds: float) -> int:
    folders: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        folders[mutant.folder].append(mutant)
    print(f"\n{'folder':24} mutants  killed   score")
    for folder, found in [*sorted(folders.items()), ("all", list(mutants))]:
        killed = sum(_is_killed(verdicts[one.name]) for one in found)
        print(f"{folder:24} {len(found):7} {killed:7}  {killed / len(found):6.1%}")
    of_state = {state: [one for one in mutants if verdicts[one.name].state == state] for state in _HEADINGS}
    for state, heading in _HEADINGS.items():
        for mutant in of_state[state]:
            print(f"{heading}: {mutant.name} in {mutant.file}: {mutant.why} {verdicts[mutant.name].by}".rstrip())
    score = sum(map(_is_killed, verdicts.values())) / len(mutants)
    print(f"\n{score:.1%} killed in {seconds:.0f} s; the minimum is {MIN_SCORE:.0%}.")
    if of_state["broken"]:
        return FAILED
    return 0 if score >= MIN_SCORE else SURVIVED


_HEADINGS = {"timeout": "Killed by a timeout", "survived": "SURVIVED", "broken": "COULD NOT BE TESTED"}


def _is_killed(verdict: Verdict) -> bool:
    return verdict.state in {"killed", "timeout"}


if __name__ == "__main__":
    sys.exit(main())
