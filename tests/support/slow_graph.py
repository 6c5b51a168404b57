"""A graph of LangGraph without models, the second node of which waits for a file."""

import asyncio
import os
from pathlib import Path
from typing import Any

from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from khala.sdk.adapters.langgraph import langgraph_agent
from tests.support.app_agents import journal

MODULE = __name__


class Review(TypedDict, total=False):
    """The state of a graph without models."""

    draft: str
    sent: str
    decisions: list[Any]


async def first_node(state: Review) -> Review:
    """Have an effect once."""
    journal("first node")
    return {"draft": "One"}


async def second_node(state: Review) -> Review:
    """Wait until the file `KHALA_APP_JOURNAL.go` is there."""
    journal("second node")
    while not Path(os.environ["KHALA_APP_JOURNAL"] + ".go").exists():
        await asyncio.sleep(0.1)
    return {"sent": state["draft"] + " two"}


def build_slow() -> Any:
    """Two nodes, the second of which waits."""
    graph = StateGraph(Review)
    graph.add_node("first", first_node)
    graph.add_node("second", second_node)
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    return graph.compile()


graph_slow = langgraph_agent(
    "graph-slow",
    build_slow(),
    make_input=lambda context: {"draft": ""},
    make_output=lambda state: str(state["sent"]),
    guests=True,
)
