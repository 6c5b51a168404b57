"""Evaluation of retrieval, routing and the choice of tools: `python -m tests.eval`.

Prints figures of the report half; floors and calibrations are fitted on the tune half. Use `--half tune --misses` while
you change a retriever, and look at the report half last.
"""

import argparse
import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import get_args

import msgspec

from khala.models.embeddings.embedder import Embedder
from khala.models.embeddings.factory import EmbeddingModelError, open_embedder
from khala.settings import SettingError, from_environment
from tests.bench import machine
from tests.eval import eval_sets, indexed
from tests.eval.eval_sets import Collection, Half
from tests.eval.khala_memories import khala_memories
from tests.eval.khala_routing import khala_routers, khala_tools
from tests.eval.loading import BenchmarkFileError, LoadedBenchmark
from tests.eval.locomo import load_locomo
from tests.eval.long_mem_eval import Granularity, load_long_mem_eval
from tests.eval.measure import (
    RECALL_LIMIT,
    SearchOutcome,
    choose_all,
    memory_figures,
    route_all,
    route_figures,
    search_all,
    tool_figures,
)
from tests.eval.report import EvalReport, table
from tests.support import postgres

PARTS = ("memories", "routing", "tools")
OWN_SETS = "Own sets"
KHALA = "khala-"
"""The names of Khala's own retrievers begin with this."""


class Systems(msgspec.Struct, frozen=True, kw_only=True):
    """The configured embedding model, and the Postgres server for Khala's own search; None for what there is not."""

    embedder: Embedder | None = None
    server_url: str | None = None


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.eval", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {' '.join(PARTS)}; all if none is given")
    parser.add_argument("--half", choices=("report", "tune", "both"), default="report", help="(%(default)s)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only the retrievers of these names")
    parser.add_argument("--longmemeval", type=Path, metavar="FILE", help="evaluate on a file of LongMemEval instead")
    parser.add_argument("--locomo", type=Path, metavar="FILE", help="evaluate on a file of LoCoMo instead")
    parser.add_argument(
        "--granularity", choices=get_args(Granularity), default="session", help="of LongMemEval (%(default)s)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="read only N questions or conversations of such a file")
    parser.add_argument("--misses", action="store_true", help="list the missed questions of the tune half")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the report to this file")
    parsed = parser.parse_args(arguments)
    if unknown := set(parsed.parts) - set(PARTS):
        parser.error(f"unknown part: {min(unknown)}; choose from {', '.join(PARTS)}")
    parsed.parts = parsed.parts or PARTS
    return parsed


async def evaluate(args: argparse.Namespace, server_url: str | None = None) -> EvalReport:
    """Measure what the arguments name, with Khala's own search if there is a Postgres. Raises `BenchmarkFileError`."""
    files = list(_benchmarks(args))
    async with configured_embedder() as embedder:
        named = "none" if embedder is None else embedder.name
        report = EvalReport(machine={**machine.host_facts(), "embeddings": named})
        await _measure(report, args, files, Systems(embedder=embedder, server_url=server_url))
    return report


async def _measure(
    report: EvalReport, args: argparse.Namespace, files: Sequence[LoadedBenchmark], systems: Systems
) -> None:
    for benchmark in files:
        await _add_memories(report, args, benchmark.title, benchmark.collections, systems)
        if benchmark.skipped:
            report.notes.append(
                f"{benchmark.title}: {benchmark.skipped} questions without usable evidence are left out"
            )
    if files:
        return
    if "memories" in args.parts:
        await _add_memories(report, args, OWN_SETS, eval_sets.read_collections(), systems)
    if "routing" in args.parts:
        await _add_routing(report, args, systems)
    if "tools" in args.parts:
        await _add_tools(report, args, systems)


async def _add_memories(
    report: EvalReport,
    args: argparse.Namespace,
    title: str,
    collections: Sequence[Collection],
    systems: Systems,
) -> None:
    figures = report.memories.setdefault(title, [])
    keywords = any(memory.keywords for one in collections for memory in one.memories)
    async with contextlib.AsyncExitStack() as stack:
        retrievers = indexed.memory_baselines(systems.embedder, keywords=keywords)
        if systems.server_url is not None:
            khala = khala_memories(systems.server_url, systems.embedder, keywords=keywords)
            of_khala, facts = await stack.enter_async_context(khala)
            retrievers += of_khala
            report.machine |= facts
        for retriever in retrievers:
            if _is_chosen(retriever.name, args):
                outcomes = await search_all(retriever, collections)
                figures += [memory_figures(retriever.name, outcomes, half, retriever.floor) for half in _halves(args)]
                if args.misses:
                    report.notes += _misses(retriever.name, outcomes)


async def _add_routing(report: EvalReport, args: argparse.Namespace, systems: Systems) -> None:
    agents, utterances = eval_sets.read_agents(), eval_sets.read_utterances()
    for router in [*indexed.router_baselines(systems.embedder), *khala_routers(systems.embedder)]:
        if _is_chosen(router.name, args):
            routed = await route_all(router, agents, utterances)
            report.routing += [route_figures(router.name, routed, half) for half in _halves(args)]


async def _add_tools(report: EvalReport, args: argparse.Namespace, systems: Systems) -> None:
    tools, tasks = eval_sets.read_tools(), eval_sets.read_tasks()
    for chooser in [*indexed.tool_baselines(systems.embedder), *khala_tools(systems.embedder)]:
        if _is_chosen(chooser.name, args):
            chosen = await choose_all(chooser, tools, tasks)
            report.tools += [tool_figures(chooser.name, chosen, half) for half in _halves(args)]


@contextlib.asynccontextmanager
async def configured_embedder() -> AsyncIterator[Embedder | None]:
    """The embedding model that `KHALA_EMBEDDINGS` names, or None. Raises `EmbeddingModelError`."""
    settings = from_environment()
    if settings.embeddings.model is None:
        yield None
        return
    embedder = open_embedder(settings.embeddings.model, settings.embedding_access)
    try:
        yield embedder
    finally:
        await embedder.aclose()


def _benchmarks(args: argparse.Namespace) -> Iterable[LoadedBenchmark]:
    if args.longmemeval:
        yield load_long_mem_eval(args.longmemeval, granularity=args.granularity, limit=args.limit)
    if args.locomo:
        yield load_locomo(args.locomo, limit=args.limit)


def _is_chosen(name: str, args: argparse.Namespace) -> bool:
    return not args.only or name in args.only


def _halves(args: argparse.Namespace) -> Sequence[Half]:
    return ("tune", "report") if args.half == "both" else (args.half,)


def _misses(name: str, outcomes: Iterable[SearchOutcome]) -> list[str]:
    """Only of the tune half: nothing should be fitted to the questions of the report half."""
    lines = []
    for one in outcomes:
        found = one.ranked[:RECALL_LIMIT]
        if one.half == "tune" and not {*one.question.expected} <= {*found}:
            answer = ", ".join(found) or "nothing"
            lines.append(f"{name} misses {one.question.id}: {one.question.text} (found {answer})")
    return lines


@contextlib.contextmanager
def _server(args: argparse.Namespace) -> Iterator[str | None]:
    """A Postgres server, if a retriever is chosen that needs one."""
    if "memories" in args.parts and (not args.only or any(name.startswith(KHALA) for name in args.only)):
        with postgres.server() as url:
            yield url
    else:
        yield None


def main() -> int:
    """Evaluate and print. Returns the exit status."""
    args = parse_arguments()
    try:
        # The server is started outside of the event loop, because it runs one of its own to be configured.
        with _server(args) as server_url:
            report = asyncio.run(evaluate(args, server_url))
    except (BenchmarkFileError, EmbeddingModelError, SettingError) as error:
        sys.exit(str(error))
    if not (any(report.memories.values()) or report.routing or report.tools):
        sys.exit(f"No part that was chosen has a retriever of the name {' or '.join(args.only)}.")
    print(table(report))
    if args.json:
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
