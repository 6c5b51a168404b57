"""Mutation score: `python -m tests.mutants [--only NAME] [--folder FOLDER] [--workers N] [--check]`.

Exits with 1 where fewer than 97 % of the mutants are killed, and with 2 where the list is wrong, a test fails without
any mutant, or a mutant's tests could not be run.
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
from tests.mutants.runner import Verdict, baseline, judge_all
from tests.mutants.workspace import Workspace, workspaces
from tests.support import postgres

ROOT = Path(__file__).parents[2]
MIN_SCORE = 0.97
WORKERS = 2
SURVIVED, WRONG = 1, 2
"""Exit statuses."""


def main() -> int:
    """Judge the mutants that were asked for, or all."""
    given = _arguments()
    chosen = [one for one in MUTANTS if _fits(one.name, given.only) and _fits(one.folder, given.folder)]
    wrong = problems(chosen, ROOT) or ([] if chosen else ["no mutant was chosen"])
    if not wrong and not given.check:
        return _judge(chosen, given.workers, first=not given.skip_baseline)
    print("\n".join(wrong) or f"All {len(chosen)} mutants can be applied.")
    return WRONG if wrong else 0


def _fits(text: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(text, pattern) for pattern in patterns)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Mutation score of Khala.")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="a mutant, or a pattern as *-lease*"
    )
    parser.add_argument("--folder", action="append", default=[], metavar="FOLDER", help="mutants of this folder")
    parser.add_argument("--workers", type=int, default=WORKERS, help="mutants at the same time")
    parser.add_argument("--skip-baseline", action="store_true", help="trust that the tests pass without any mutant")
    parser.add_argument("--check", action="store_true", help="only check that each mutant can be applied")
    return parser.parse_args()


def _judge(mutants: Sequence[Mutant], workers: int, *, first: bool) -> int:
    began = time.monotonic()
    with postgres.server() as url, workspaces(ROOT, max(1, min(workers, len(mutants))), url) as spaces:
        failing = _baseline(spaces[0], mutants) if first else []
        if failing:
            print("\n".join(failing))
            return WRONG
        verdicts = judge_all(spaces, mutants, _tell)
    return _summary(mutants, verdicts, time.monotonic() - began)


def _baseline(space: Workspace, mutants: Sequence[Mutant]) -> list[str]:
    began = time.monotonic()
    print(f"{len(mutants)} mutants; first their tests without any mutant …", flush=True)
    found = baseline(space, mutants)
    if not found:
        print(f"They pass, in {time.monotonic() - began:.0f} s.", flush=True)
    return found


def _tell(mutant: Mutant, verdict: Verdict) -> None:
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
    print(f"\n{score:.1%} killed in {seconds:.0f} s; at least {MIN_SCORE:.0%} have to be.")
    if of_state["broken"]:
        return WRONG
    return 0 if score >= MIN_SCORE else SURVIVED


_HEADINGS = {"timeout": "Killed by a timeout", "survived": "SURVIVED", "broken": "COULD NOT BE TESTED"}


def _is_killed(verdict: Verdict) -> bool:
    return verdict.state in {"killed", "timeout"}


if __name__ == "__main__":
    sys.exit(main())
