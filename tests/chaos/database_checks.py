"""Checks of the database after a chaos run: texts, leases, states and revisions."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, TypeAlias
from uuid import UUID

import asyncpg
import msgspec

from khala.domain.agents import COMMAND_PREFIX
from khala.store.threads.reset_marks import IS_MESSAGE, IS_PLAN, IS_RUN
from tests.chaos.model import ModelOutput, number_of
from tests.chaos.observers import TERMINAL
from tests.chaos.schedule import WEBS

Records = Sequence[asyncpg.Record]
Parts: TypeAlias = Sequence[tuple[str, dict[str, Any]]]
"""The parts of a run, as kind and data."""
RESUMED = "resumed"

PARTS = """
    SELECT run_id, seq, kind, data FROM message_parts ORDER BY run_id, seq
"""
OF_PLAN = f"plan_id IN (SELECT id FROM plans WHERE {IS_PLAN})"
"""A reset deletes plans with their runs at once, and its purge removes their rows later."""


class DatabaseState(msgspec.Struct, frozen=True):
    """The rows that the checks use."""

    runs: Records
    parts: Mapping[str, list[tuple[str, dict[str, Any]]]]
    run_log: Records
    part_log: Records
    revisions: Records
    messages: Records
    plans: Records = ()
    plan_steps: Records = ()
    plan_events: Records = ()

    @classmethod
    async def read(cls, connection: "asyncpg.Connection[asyncpg.Record]") -> "DatabaseState":
        """Read all rows."""
        parts: defaultdict[str, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
        for row in await connection.fetch(PARTS):
            parts[str(row["run_id"])].append((row["kind"], msgspec.json.decode(row["data"])))
        return cls(
            runs=await connection.fetch(f"SELECT * FROM runs WHERE {IS_RUN}"),
            parts=parts,
            run_log=await connection.fetch("SELECT * FROM chaos.runs ORDER BY run_id, number"),
            part_log=await connection.fetch("SELECT * FROM chaos.parts ORDER BY run_id, number"),
            revisions=await connection.fetch("SELECT * FROM chaos.revisions ORDER BY thread_id, number"),
            messages=await connection.fetch(f"SELECT * FROM messages WHERE {IS_MESSAGE}"),
            plans=await connection.fetch(f"SELECT * FROM plans WHERE {IS_PLAN}"),
            plan_steps=await connection.fetch(f"SELECT * FROM plan_steps WHERE {OF_PLAN}"),
            plan_events=await connection.fetch(f"SELECT * FROM plan_events WHERE {OF_PLAN} ORDER BY plan_id, seq"),
        )


class Segment(msgspec.Struct):
    """The text of one call of the model; `closed_by` is the kind of the part that ended it, `data` is its data."""

    text: str
    closed_by: str
    data: dict[str, Any]
    calls: list[dict[str, Any]] = []


def segments(parts: Parts) -> Iterator[Segment]:
    """Split an answer at the calls of the model. The text of a failure is left out."""
    text, last = "", None
    for kind, data in parts:
        if kind == "text-delta":
            text += data["text"]
        elif kind == "tool-call" and last is not None:
            last.calls.append(data)
        elif kind in ("notice", "step", "error", "finish"):
            if kind == "error":
                text = text.removesuffix(data["message"]).removesuffix("\n\n")
            last = Segment(text, kind, data)
            yield last
            text = ""


def is_command(run: asyncpg.Record) -> bool:
    """Whether the run is for a command agent."""
    return str(msgspec.json.decode(run["options"]).get("agent")).startswith(COMMAND_PREFIX)


def texts(state: DatabaseState, outputs: Mapping[int, ModelOutput]) -> Iterator[str]:
    """Each answer of a model is the output of consecutive calls, and each output is in one answer only, once."""
    used: dict[int, str] = {}
    for run in state.runs:
        run_id, last = str(run["id"]), 0
        if is_command(run):
            continue
        # As a list, because the tool calls of a step follow its segment.
        for segment in list(segments(state.parts.get(run_id, ()))):
            if not segment.text and not segment.calls:
                if segment.closed_by == "finish" and segment.data["reason"] == "stop" and run["plan_id"] is None:
                    yield f"run {run_id} ended well without a final text"
                continue
            number = _call_number(segment)
            output = outputs.get(number)
            if output is None:
                yield f"run {run_id} has text that no model sent: {segment.text[:200]!r}"
                continue
            if used.setdefault(number, run_id) != run_id or number <= last:
                yield f"run {run_id} has call {number} of the model twice, or out of order"
            last = number
            yield from (f"run {run_id}: {problem}" for problem in _segment(segment, output))


def _call_number(segment: Segment) -> int:
    """The number of the model call whose output this is; 0 if unknown."""
    if segment.text.startswith("<"):
        digits = segment.text[1:].partition(".")[0]
        return int(digits) if digits.isdecimal() else 0
    numbers = [(number_of(call["args"]) or 0) // 100 for call in segment.calls if call.get("args")]
    return numbers[0] if numbers and not segment.text else 0


def _segment(segment: Segment, output: ModelOutput) -> Iterator[str]:
    if not output.text.startswith(segment.text):
        common = next(
            (i for i, (a, b) in enumerate(zip(segment.text, output.text, strict=False)) if a != b), len(output.text)
        )
        near = segment.text[max(0, common - 20) : common + 60]
        yield f"from character {common} on it is not the output of call {output.number}: {near!r}"
    ended = segment.closed_by == "step" or (segment.closed_by == "finish" and segment.data["reason"] == "stop")
    if ended and (segment.text != output.text or not output.complete):
        size = f"{len(segment.text)} of {len(output.text)} characters"
        yield f"it ends with {size} of call {output.number}"
    if segment.closed_by == "step" and [number_of(call["args"]) for call in segment.calls] != list(output.calls):
        yield f"its calls are not those of call {output.number}"


def terminal(state: DatabaseState) -> Iterator[str]:
    """An ended run keeps its status, and has exactly one finish part, which is the last."""
    for run_id, log in groupby(state.run_log, key=lambda row: row["run_id"]):
        for before, after in pairwise(log):
            if before["status"] in TERMINAL and after["status"] != before["status"]:
                yield f"run {run_id} was {before['status']} and became {after['status']}"
    for run in state.runs:
        kinds = [kind for kind, _ in state.parts.get(str(run["id"]), ())]
        if run["status"] in TERMINAL and (kinds.count("finish") != 1 or kinds[-1] != "finish"):
            yield f"run {run['id']} has ended with parts {kinds[-3:]}"


def leases(state: DatabaseState, named: Callable[[int], set[str]]) -> Iterator[str]:
    """Each change of the holder increments the epoch. One executor writes the parts of an epoch, without gaps.

    `named` returns the processes that had a connection from a port. Only a web process ends a run without a lease.
    """
    for run_id, log in groupby(state.run_log, key=lambda row: row["run_id"]):
        for before, after in pairwise(log):
            grown = after["epoch"] - before["epoch"]
            taken = after["lease_owner"] is not None and after["lease_owner"] != before["lease_owner"]
            if grown < 0 or grown > 1 or (taken and grown != 1):
                yield f"run {run_id} went from epoch {before['epoch']} to {after['epoch']} by {after['lease_owner']}"
    for run_id, rows in groupby(state.part_log, key=lambda row: row["run_id"]):
        # The rows of one commit have the same revision, and may be logged in any order.
        parts = sorted(rows, key=lambda row: (row["revision"], row["seq"]))
        if [row["seq"] for row in parts] != list(range(len(parts))):
            yield f"parts of run {run_id} were not written in order: {[row['seq'] for row in parts]}"
        if any(after["epoch"] < before["epoch"] for before, after in pairwise(parts)):
            yield f"parts of run {run_id} were written under an old epoch"
        for epoch, written in groupby(parts, key=lambda row: row["epoch"]):
            yield from _one_writer(str(run_id), epoch, list(written), named)


def _one_writer(run_id: str, epoch: int, parts: Records, named: Callable[[int], set[str]]) -> Iterator[str]:
    writers = [named(row["port"]) for row in parts]
    executors = [{name for name in names if name.partition("#")[0] not in WEBS} for names in writers]
    known = [names for names in executors if names]
    if known and not set.intersection(*known):
        yield f"run {run_id} has parts of several executors in epoch {epoch}: {writers}"
    ended = next((i for i, names in enumerate(executors) if not names), None)
    if ended is not None and any(executors[ended:]):
        yield f"run {run_id} has parts of an executor after a web process had ended it, in epoch {epoch}"


def revisions(state: DatabaseState) -> Iterator[str]:
    """Each change increments the revision of a thread by one."""
    for thread_id, rows in groupby(state.revisions, key=lambda row: row["thread_id"]):
        log = list(rows)
        for row in log:
            if row["after"] != row["before"] + 1:
                yield f"thread {thread_id} went from revision {row['before']} to {row['after']}"
        for before, after in pairwise(log):
            if after["before"] != before["after"]:
                yield f"thread {thread_id} went from revision {before['after']} on at {after['before']}"


ENDS_ATTEMPT = frozenset(
    {
        *("step_completed", "step_failed", "step_retrying", "step_unfinished", "rate_limited", "agent_unavailable"),
        *("step_reopened", "step_skipped", "step_cancelled"),
    }
)
"""The types of the events after which a step does not run."""


def plans(state: DatabaseState) -> Iterator[str]:
    """Events have no gaps, nothing follows the one end, and a step that is completed is not done again."""
    events = {plan_id: list(rows) for plan_id, rows in groupby(state.plan_events, key=lambda row: row["plan_id"])}
    runs = {run["id"]: run for run in state.runs}
    for plan in state.plans:
        log = [msgspec.json.decode(row["data"]) for row in events.get(plan["id"], ())]
        seqs = [row["seq"] for row in events.get(plan["id"], ())]
        if seqs != list(range(1, plan["event_seq"] + 1)):
            yield f"plan {plan['id']} has {plan['event_seq']} events, and stored are {seqs}"
        types = [event["type"] for event in log]
        if plan["status"] != "stopped":
            yield f"plan {plan['id']} is {plan['status']}"
        elif types.count("stopped") != 1 or types[-1] != "stopped":
            yield f"plan {plan['id']} ends with {types[-3:]}"
        elif (reason := log[-1]["reason"]) not in (expected := _endings(log)):
            yield f"plan {plan['id']} ended with {reason}, and not {' or '.join(expected)}"
        yield from (f"plan {plan['id']}: {problem}" for problem in _attempts(log))
        spent, used = msgspec.json.decode(plan["state"])["spent"].get("tokens", 0), _tokens_of(state, plan["id"])
        if spent != used:
            yield f"plan {plan['id']} has spent {spent} tokens, and its runs have used {used}"
    for run_id in {msgspec.json.decode(row["data"]).get("runId") for row in state.plan_events} - {None}:
        if UUID(run_id) not in runs:
            yield f"run {run_id} of a step does not exist"


def _endings(log: Sequence[dict[str, Any]]) -> list[str]:
    """How a plan may end, by its events. In chaos, people neither edit nor skip steps."""
    if any(event["type"] == "stopping" and event["reason"] == "interrupted" for event in log):
        return ["interrupted"]
    completed = {event["stepId"] for event in log if event["type"] == "step_completed"}
    given_up = {event["stepId"] for event in log if event["type"] in ("step_failed", "step_skipped")}
    steps = {step["id"]: step.get("dependsOn", ()) for step in log[0]["steps"]}
    if completed == set(steps):
        return ["completed"]
    for step, before in steps.items():  # Steps only depend on those before them.
        if step not in completed and given_up & set(before):
            given_up.add(step)
    return ["no_tasks"] if completed | given_up == set(steps) else ["no end, as steps are left"]


def _tokens_of(state: DatabaseState, plan_id: UUID) -> int:
    """The tokens that the runs of this plan have used."""
    run_ids = {run["id"] for run in state.runs if run["plan_id"] == plan_id}
    finishes = [row["finish"] for row in state.messages if row["run_id"] in run_ids and row["finish"] is not None]
    return sum(sum(msgspec.json.decode(finish)["usage"].values()) for finish in finishes)


def _attempts(log: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The attempts of a step follow one another, and none begins after it was completed."""
    status: dict[str, str] = {}
    attempts: dict[str, int] = defaultdict(int)
    for event in log:
        step, kind = event.get("stepId", ""), event["type"]
        if kind == "step_started":
            if status.get(step) in ("running", "completed"):
                yield f"step {step} was {status[step]} and began again"
            attempts[step] += 1
            if event["attempt"] != attempts[step]:
                yield f"attempt {attempts[step]} of step {step} has the number {event['attempt']}"
            status[step] = "running"
        elif kind in ENDS_ATTEMPT:
            status[step] = "completed" if kind == "step_completed" else "open"
