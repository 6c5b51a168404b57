"""By words, routing and the choice of tools are at least as good as plain BM25, on the half that they are tuned on."""

import pytest

from tests.eval import eval_sets, indexed
from tests.eval.khala_routing import khala_routers, khala_tools
from tests.eval.measure import RouteFigures, ToolFigures, choose_all, route_all, route_figures, tool_figures
from tests.eval.retrievers import Router, ToolRetriever


async def routing_figures(router: Router) -> RouteFigures:
    utterances = [one for one in eval_sets.read_utterances() if one.half == "tune"]
    return route_figures(router.name, await route_all(router, eval_sets.read_agents(), utterances), "tune")


async def choice_figures(chooser: ToolRetriever) -> ToolFigures:
    tasks = [one for one in eval_sets.read_tasks() if one.half == "tune"]
    return tool_figures(chooser.name, await choose_all(chooser, eval_sets.read_tools(), tasks), "tune")


@pytest.mark.asyncio
async def test_routing_by_words_is_not_worse_than_bm25() -> None:
    plain, khala = await routing_figures(indexed.router_baselines()[0]), await routing_figures(khala_routers()[0])
    assert khala.top1 >= plain.top1
    assert khala.coverage >= plain.coverage
    assert khala.accuracy_answered >= plain.accuracy_answered
    assert khala.abstention.f1 >= plain.abstention.f1
    assert khala.calibration_error <= plain.calibration_error


@pytest.mark.asyncio
async def test_the_choice_of_tools_is_not_worse_than_bm25() -> None:
    plain, khala = await choice_figures(indexed.tool_baselines()[0]), await choice_figures(khala_tools()[0])
    assert khala.recall >= plain.recall
    assert khala.mrr >= plain.mrr
