"""The views of `khala plan`, without a server and without a terminal."""

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khala.domain.errors import InvalidInput
from khala.domain.parts import Part
from khala.domain.plans.documents.markdown_reader import read_markdown
from khala.domain.plans.plan import Counts, PlanBudget, PlanConfig, PlannedStep, Spent
from khala.domain.plans.views import PlanDetail, PlanEventEntry, StepDetail, StepProgress
from khala.operations.plan_client.event_lines import event_line
from khala.operations.plan_client.output_tail import MAX_LINE_CHARACTERS, MAX_LINES, OutputTail
from khala.operations.plan_client.plan_edit import difference
from khala.operations.plan_client.plan_screen import ScreenSize, draw
from khala.operations.plan_client.session import plan_line
from khala.operations.plan_client.text import clean
from khala.operations.plan_client.view_state import FeedFrame, PlanViewState

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
PLAN_ID = UUID(int=1)
RUN_ID = UUID(int=2)
TITLES = st.text(max_size=40) | st.sampled_from(
    ["写真のアルバムを日付で並べる", "\x1b[31mred\x1b[0m \x07", "e\u0301" * 20]
)


def plan(**fields: Any) -> PlanDetail:
    known: dict[str, Any] = {
        "id": PLAN_ID, "thread_id": PLAN_ID, "title": "Album", "mode": "autopilot", "status": "running",
        "agent": "default", "iteration": 1, "max_iterations": 100, "counts": Counts(open=1, running=1),
        "spent": Spent(), "budget": PlanBudget(), "event_seq": 3, "revision": 10, "edited_revision": 1,
        "created_at": NOW, "updated_at": NOW, "goal": "", "config": PlanConfig(agents=("default",)),
    }  # fmt: skip
    return PlanDetail(**{**known, **fields})


def step(step_id: str, title: str = "Do it", **fields: Any) -> StepDetail:
    known: dict[str, Any] = {"plan_id": PLAN_ID, "id": step_id, "status": "open", "attempts": 0}
    return StepDetail(**{**known, **fields}, planned=PlannedStep(id=step_id, title=title))


def running_step() -> StepDetail:
    return step("S1", status="running", run_id=RUN_ID, attempts=1, started_at=NOW)


def text_part(seq: int, text: str) -> Part:
    data = msgspec.Raw(json.dumps({"text": text}).encode())
    return Part(run_id=RUN_ID, message_id=RUN_ID, seq=seq, kind="text-delta", data=data, created_at=NOW)


def test_the_tail_of_any_output_is_bounded_and_ends_with_its_last_line() -> None:
    tail = OutputTail()
    for number in range(20_000):
        tail.append(f"line {number}\n" + "x" * 50)
    tail.append("y" * 1_000_000)
    assert tail.size <= (MAX_LINES + 1) * MAX_LINE_CHARACTERS
    tail.append("\nlast")
    assert tail.last(1) == ["last"]


@given(st.lists(st.text(alphabet="ab\n\r", max_size=9), max_size=9))
def test_a_tail_is_the_same_however_its_text_is_cut(pieces: list[str]) -> None:
    tail, whole = OutputTail(), OutputTail()
    for piece in pieces:
        tail.append(piece)
    whole.append("".join(pieces))
    assert tail.last(9) == whole.last(9)


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[2J\x1b[1;1Hx",
        "\x1b]0;a\x07x",
        "\x1b]8;;http://a\x1b\\x",
        "\x9b31mx",
        "\x1bPq\x1b\\x",
        "\u202ex",
        "\x00x\x07",
    ],
)
def test_text_of_models_moves_no_cursor_and_hides_nothing(text: str) -> None:
    assert clean(text) == "x"


@given(TITLES, TITLES, st.integers(1, 120), st.integers(1, 40), st.integers(0, 60), st.booleans())
def test_a_plan_fits_in_every_terminal(
    title: str, output: str, columns: int, lines: int, steps: int, ascii_only: bool
) -> None:
    state = PlanViewState(
        plan(title=title or "-", agent_reason=title),
        [running_step(), *(step(str(number), title, error=output) for number in range(steps))],
    )
    state.apply(FeedFrame(type="delta", revision=11, parts=[text_part(0, output)]))
    drawn = draw(state, ScreenSize(columns, lines, ascii_only), NOW, "a notice of several words")
    rows = drawn.split("\n", allow_blank=True)
    assert len(rows) <= lines
    assert all(row.cell_len <= columns for row in rows)
    assert drawn.plain.isascii() or not ascii_only


def test_the_screen_has_the_control_line_the_fallback_and_the_output() -> None:
    reason = "the primary agent is limited"
    state = PlanViewState(plan(agent="second", agent_reason=reason), [running_step(), step("S2")])
    state.apply(FeedFrame(type="delta", revision=11, parts=[text_part(0, "first\nsecond")]))
    rows = draw(state, ScreenSize(100, 20), NOW).plain.split("\n")
    assert rows == [
        "Album",
        "running  0 of 2 done  agent second  tries: 1 of 100  $0.0000  0 tokens",
        "fallback agent second: the primary agent is limited",
        "▶ S1 Do it  try 1 0s",
        "○ S2 Do it",
        "-- S1",
        "first",
        "second",
    ]


def test_only_completed_steps_are_done_and_others_are_named() -> None:
    counts = Counts(open=0, running=1, completed=3, failed=1, skipped=0, cancelled=0, blocked=2)
    rows = draw(PlanViewState(plan(counts=counts), []), ScreenSize(100, 20), NOW).plain.split("\n")
    assert rows[1].startswith("running  3 of 7 done  1 failed  2 blocked  agent ")
    assert "  3 of 7 done, 1 failed, 2 blocked  Album" in plan_line(plan(counts=counts))


def test_a_repeated_part_and_an_old_frame_change_nothing() -> None:
    state = PlanViewState(plan(), [running_step()])
    state.apply(FeedFrame(type="delta", revision=11, parts=[text_part(0, "a")]))
    state.apply(FeedFrame(type="delta", revision=12, parts=[text_part(0, "a"), text_part(1, "b")]))
    assert state.outputs[RUN_ID].last(5) == ["ab"]
    old = StepProgress(plan_id=PLAN_ID, id="S1", status="open", attempts=0)
    state.apply(FeedFrame(type="delta", revision=10, plans=[plan(revision=9, status="idle")], plan_steps=[old]))
    assert (state.plan.status, state.steps["S1"].status) == ("running", "running")


def test_a_frame_without_all_steps_has_them_read_again() -> None:
    state = PlanViewState(plan(), [running_step()])
    assert not state.apply(FeedFrame(type="delta", revision=11))
    assert state.apply(FeedFrame(type="delta", revision=12, plan_steps=None))
    assert state.apply(FeedFrame(type="delta", revision=13, plans=[plan(revision=13, edited_revision=13)]))
    assert state.apply(FeedFrame(type="snapshot", revision=14))


def test_an_ended_step_keeps_no_output() -> None:
    state = PlanViewState(plan(), [running_step()])
    state.apply(FeedFrame(type="delta", revision=11, parts=[text_part(0, "a")]))
    ended = StepProgress(plan_id=PLAN_ID, id="S1", status="completed", attempts=1, run_id=RUN_ID)
    state.apply(FeedFrame(type="delta", revision=12, plan_steps=[ended]))
    assert state.outputs == {}


@pytest.mark.parametrize(
    ("kind", "data", "line"),
    [
        ("step_failed", {"attempt": 2, "error": "a\nb"}, "step_failed        S1       try 2: a b"),
        ("paused", {"reason": "all_limited"}, "paused             S1       all agents have reached their rate limits"),
        ("agent_switched", {"agent": "b", "reason": "rate limit"}, "agent_switched     S1       agent b: rate limit"),
    ],
)
def test_an_event_is_one_line(kind: str, data: dict[str, Any], line: str) -> None:
    event = PlanEventEntry(plan_id=PLAN_ID, seq=1, type=kind, step_id="S1", at=NOW, data=data)
    assert event_line(event) == f"2026-01-31T12:00:00Z {line}"


def test_a_difference_has_the_changes_only() -> None:
    before = read_markdown("# A\n\n- [x] S1: One\n- [ ] S2: Two\n- [ ] S3: Three\n")
    after = read_markdown("# B\n\n- [ ] S4: Four\n- [x] S1: One\n- [ ] S2: Deux\n")
    changes = difference(before, after)
    assert changes.steps == {
        "add": [{"id": "S4", "title": "Four"}],
        "remove": ["S3"],
        "change": [{"id": "S2", "title": "Deux"}],
        "order": ["S4", "S1", "S2"],
    }
    assert changes.details == {"title": "B"}
    assert difference(before, before).steps == {}
    with pytest.raises(InvalidInput, match="khala plan skip"):
        difference(before, read_markdown("- [ ] S1: One\n- [ ] S2: Two\n"))
