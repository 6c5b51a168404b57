"""Checks of the command agents of a chaos run: their output, their effects, their commits, and what is left of them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from tests.chaos.command_agent import MARKER, TASK, output_of
from tests.chaos.database_checks import DatabaseState, is_command, segments
from tests.support.checkouts import git
from tests.support.command_agents import with_mark

GIT_AGENT = "command:git"
CLOCK_SECONDS = 0.05
"""The difference at which two readings of one clock, by two processes, are in order."""

Journal = Sequence[Mapping[str, Any]]


class CompletedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that a command agent completed. `name` is that in its task; `completed_at` is by the clock of Postgres."""

    plan_id: UUID
    thread_id: UUID
    step_id: str
    name: str
    agent: str
    completed_at: float


def outputs(state: DatabaseState, journal: Journal) -> Iterator[str]:
    """The text of each run is the output of one program, whole if the run is final, and of no other run."""
    began = {entry["token"]: entry["words"] for entry in journal if entry["event"] == "began"}
    whole = {token: output_of(token, words) for token, words in began.items()}
    used: dict[str, str] = {}
    for run in filter(is_command, state.runs):
        run_id, parts = str(run["id"]), state.parts.get(str(run["id"]), [])
        text = "".join(segment.text for segment in segments(parts))
        token = text[1:].partition(".")[0] if text.startswith("<") else ""
        if not any(kind == "tool-call" for kind, _ in parts):
            yield from (f"run {run_id} {problem}" for problem in _repeated(text, whole.values()))
        elif text and token not in whole:
            yield f"run {run_id} has text that no command wrote: {text[:200]!r}"
        elif text and used.setdefault(token, run_id) != run_id:
            yield f"runs {used[token]} and {run_id} have the output of one program"
        elif text and not whole[token].startswith(text):
            yield f"run {run_id} has other text than its program wrote: {text[-200:]!r}"
        elif run["status"] == "final" and text and text != whole[token]:
            yield f"run {run_id} is final, and its output is not whole"


def _repeated(text: str, outputs: Iterable[str]) -> Iterator[str]:
    """An attempt without a program only tells the summary of an earlier one, whose work it has merged."""
    summary = text.removesuffix(f"\n\n{MARKER}\n")
    if summary and not any(output.removesuffix(f"\n\n{MARKER}\n").strip().endswith(summary) for output in outputs):
        yield f"has text that no command wrote: {text[:200]!r}"


def completed_steps(state: DatabaseState) -> Iterator[CompletedStep]:
    """The steps that command agents completed."""
    instructions = {
        (row["plan_id"], row["id"]): msgspec.json.decode(row["planned"])["instructions"] for row in state.plan_steps
    }
    ended = {str(row["run_id"]): row["at"].timestamp() for row in state.run_log if row["status"] == "final"}
    started: dict[tuple[UUID, str], dict[str, Any]] = {}
    for row in state.plan_events:
        event = msgspec.json.decode(row["data"])
        key = row["plan_id"], event.get("stepId", "")
        if event["type"] == "step_started":
            started[key] = event
        elif event["type"] == "step_completed" and started[key]["agent"].startswith("command:"):
            found = TASK.search(instructions[key])
            assert found is not None
            yield CompletedStep(
                plan_id=row["plan_id"],
                thread_id=row["thread_id"],
                step_id=event["stepId"],
                name=found[1],
                agent=started[key]["agent"],
                completed_at=ended[started[key]["runId"]],
            )


def effects(state: DatabaseState, journal: Journal) -> Iterator[str]:
    """A completed step has its effect, no effect happens twice, and no program does a step that is completed."""
    did = Counter(entry["name"] for entry in journal if entry["event"] == "did")
    yield from (f"step {name} took effect {count} times" for name, count in did.items() if count > 1)
    for step in completed_steps(state):
        if not did[step.name]:
            yield f"step {step.name} is completed, and had no effect"
        for entry in journal:
            if (entry["event"], entry["name"]) == ("began", step.name) and (
                entry["at"] > step.completed_at + CLOCK_SECONDS
            ):
                yield f"step {step.name} was begun {entry['at'] - step.completed_at:.2f} s after it was completed"


def commits(state: DatabaseState, checkouts: Path) -> Iterator[str]:
    """A step that was completed in a checkout is there once, with its file. Nothing else is left there."""
    steps = list(completed_steps(state))
    for folder in sorted(checkouts.glob("*")):
        if folder.suffix == ".khala":
            continue
        changed = git(folder, "status", "--porcelain")
        if changed:
            yield f"{folder} has changes: {changed}"
        trailers = Counter(git(folder, "log", "--no-merges", "--format=%(trailers:key=Khala-Step,valueonly)").split())
        files = set(git(folder, "ls-files").split())
        for step in steps:
            if str(step.thread_id) != folder.name or step.agent != GIT_AGENT:
                continue
            count = trailers[f"{step.plan_id}/{step.step_id}"]
            if count > 1:
                yield f"step {step.name} was committed {count} times"
            if step.name not in files:
                yield f"step {step.name} is completed, and not in {folder}"
        yield from (f"{folder}: {problem}" for problem in git(folder, "fsck", "--no-dangling").splitlines())


def processes(mark: str) -> Iterator[str]:
    """No process with this mark is left."""
    yield from (f"process {pid} is left" for pid in with_mark(mark))
