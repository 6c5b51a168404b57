"""The report of an evaluation, as text and as JSON."""

from collections.abc import Iterable, Sequence

import msgspec

from tests.bench.tables import align_columns, format_number
from tests.eval.eval_sets import QuestionKind
from tests.eval.measure import CostFigures, MemoryFigures, RouteFigures, ToolFigures
from tests.eval.metrics import Abstention

KINDS: Sequence[QuestionKind] = ("paraphrase", "update", "time", "hops")


class EvalReport(msgspec.Struct, kw_only=True):
    """All figures of one run. `memories` has one list for each set of memories by its title."""

    machine: dict[str, str]
    memories: dict[str, list[MemoryFigures]] = msgspec.field(default_factory=dict)
    routing: list[RouteFigures] = msgspec.field(default_factory=list)
    tools: list[ToolFigures] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)


def table(report: EvalReport) -> str:
    """The report as text."""
    lines = [f"{name}: {fact}" for name, fact in report.machine.items()]
    for title, figures in report.memories.items():
        lines += ["", f"{title}: finding memories", *align_columns(list(_memory_rows(figures)))]
        lines += ["", f"{title}: Recall@5 by kind and language", *align_columns(list(_recall_rows(figures)))]
    if report.routing:
        lines += ["", "Routing: choosing an agent", *align_columns(list(_route_rows(report.routing)))]
    if report.tools:
        lines += ["", "Tools: choosing tools for a task", *align_columns(list(_tool_rows(report.tools)))]
    return "\n".join([*lines, *(["", *report.notes] if report.notes else [])])


def _memory_rows(figures: Iterable[MemoryFigures]) -> Iterable[list[str]]:
    head = [
        "retriever",
        "half",
        "questions",
        "Recall@5",
        "MRR",
        "stale first",
        "floor",
        "decisions",
        *_abstention_head(),
        "ECE",
    ]
    yield [*head, *_cost_head()]
    for one in figures:
        yield [
            one.name,
            one.half,
            format_number(one.questions),
            *_shares(one.recall, one.mrr, one.stale_first, one.floor, one.decisions),
            *_abstention(one.abstention),
            *_shares(one.calibration_error),
            *_cost(one.cost),
        ]


def _recall_rows(figures: Sequence[MemoryFigures]) -> Iterable[list[str]]:
    found = {name for one in figures for name in one.recall_by}
    columns = [*(kind for kind in KINDS if kind in found), *sorted(found - {*KINDS})]
    yield ["retriever", "half", *columns]
    for one in figures:
        yield [one.name, one.half, *(format_number(one.recall_by.get(name)) for name in columns)]


def _route_rows(figures: Iterable[RouteFigures]) -> Iterable[list[str]]:
    head = [
        "router",
        "half",
        "utterances",
        "top-1",
        "coverage",
        "right if answered",
        "decisions",
        *_abstention_head(),
        "ECE",
    ]
    yield [*head, *_cost_head()]
    for one in figures:
        yield [
            one.name,
            one.half,
            format_number(one.utterances),
            *_shares(one.top1, one.coverage, one.accuracy_answered, one.decisions),
            *_abstention(one.abstention),
            *_shares(one.calibration_error),
            *_cost(one.cost),
        ]


def _tool_rows(figures: Iterable[ToolFigures]) -> Iterable[list[str]]:
    yield ["chooser", "half", "tasks", "Recall@5", "Recall@10", "MRR", *_cost_head()]
    for one in figures:
        yield [
            one.name,
            one.half,
            format_number(one.tasks),
            *_shares(one.recall, one.wide_recall, one.mrr),
            *_cost(one.cost),
        ]


def _abstention_head() -> list[str]:
    return ["abstention precision", "recall", "F1"]


def _abstention(figures: Abstention) -> list[str]:
    return _shares(figures.precision, figures.recall, figures.f1)


def _cost_head() -> list[str]:
    return ["p50 ms", "CPU µs"]


def _cost(figures: CostFigures) -> list[str]:
    return [format_number(figures.p50_ms), format_number(round(figures.cpu_us))]


def _shares(*values: float) -> list[str]:
    return [f"{value:.2f}" for value in values]
