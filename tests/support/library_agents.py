"""Agents of other libraries, whose models are the local provider at `KHALA_TEST_PROVIDER`.

`KHALA_APP_JOURNAL` names the file of their effects.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from agents import Agent as OpenAIAgent
from agents import OpenAIChatCompletionsModel, function_tool
from langchain_core.messages import SystemMessage
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import interrupt
from openai import AsyncOpenAI
from pydantic import BaseModel, SecretStr
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import ModelRetry
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import RunContext
from typing_extensions import TypedDict

from khala.sdk.adapters.langgraph import langgraph_agent
from khala.sdk.adapters.openai_agents import openai_agent
from khala.sdk.adapters.pydantic_ai import pydantic_ai_agent
from tests.support.app_agents import journal

MODULE = __name__
URL = os.environ.get("KHALA_TEST_PROVIDER", "http://127.0.0.1:9") + "/v1"


def pydantic_model(name: str) -> OpenAIChatModel:
    """A model of the local provider, which answers by the model's name."""
    return OpenAIChatModel(name, provider=OpenAIProvider(base_url=URL, api_key="key"))


clerk: PydanticAgent[None, str] = PydanticAgent(pydantic_model("clerk"), system_prompt="You are a clerk.")


@clerk.tool_plain
async def order_status(order: str) -> dict[str, str]:
    """Look up an order."""
    if order == "B-1":
        raise ModelRetry("There is no order B-1.")
    journal(f"order_status {order}")
    return {"order": order, "state": "paid"}


@clerk.tool_plain(requires_approval=True)
async def refund(order: str, amount: int) -> str:
    """Pay an order back."""
    journal(f"refund {order} {amount}")
    return f"Paid {amount} back."


@clerk.tool
async def close(context: RunContext[None], order: str) -> str:
    """Close an order, which needs approval if it is paid."""
    if order == "A-17" and not context.tool_call_approved:
        raise ApprovalRequired
    journal(f"close {order}")
    return "Closed."


@clerk.tool_plain
async def wait() -> str:
    """Wait for ever."""
    journal("wait")
    try:
        await asyncio.Event().wait()
    finally:
        journal("wait cancelled")
    return ""


class Verdict(BaseModel):
    """An assessment."""

    city: str
    score: int


judge = PydanticAgent(pydantic_model("judge"), output_type=Verdict)

pydantic_clerk = pydantic_ai_agent("pydantic-clerk", clerk, title="Clerk", guests=True)
pydantic_judge = pydantic_ai_agent("pydantic-judge", judge, guests=True)


def chat_model(name: str) -> ChatOpenAI:
    """A model of the local provider for LangGraph."""
    return ChatOpenAI(model=name, base_url=URL, api_key=SecretStr("key"), max_retries=0, stream_usage=True)


@langchain_tool("order_status")
async def langchain_order_status(order: str) -> dict[str, str]:
    """Look up an order."""
    return dict(await order_status(order))


@langchain_tool("refund")
async def langchain_refund(order: str, amount: int) -> str:
    """Pay an order back, if a person agrees."""
    decision = interrupt({"action": "refund_approval", "order": order, "amount": amount})
    if not decision["approved"]:
        return f"Not allowed: {decision['reason']}"
    return str(await refund(decision["arguments"]["order"], decision["arguments"]["amount"]))


@langchain_tool("wait")
async def langchain_wait() -> str:
    """Wait for ever."""
    return str(await wait())


graph_tools = [langchain_order_status, langchain_refund, langchain_wait]


async def ask_model(state: MessagesState) -> dict[str, Any]:
    """Ask the model, which may call tools."""
    model = chat_model("graph").bind_tools(graph_tools)
    return {"messages": [await model.ainvoke([SystemMessage("You are a clerk."), *state["messages"]])]}


def build_graph() -> Any:
    """A model that calls tools, until it answers."""
    graph = StateGraph(MessagesState)
    graph.add_node("model", ask_model)
    graph.add_node("tools", ToolNode(graph_tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


class Review(TypedDict, total=False):
    """The state of a graph without models."""

    draft: str
    sent: str
    decisions: list[Any]


def write_draft(state: Review) -> Review:
    """Write in a thread."""
    journal("draft")
    return {"draft": "Dear Ann"}


async def act(state: Review) -> Review:
    """Ask as the middleware of LangChain does."""
    request = {"name": "send_mail", "args": {"text": state["draft"]}}
    decided = interrupt({"action_requests": [request], "review_configs": []})
    second = interrupt("Really?")
    journal(f"sent {decided['decisions']}")
    return {"decisions": [*decided["decisions"], second]}


def build_review() -> Any:
    """A graph that asks within a subgraph."""
    inner = StateGraph(Review)
    inner.add_node("act", act)
    inner.add_edge(START, "act")
    graph = StateGraph(Review)
    graph.add_node("draft", write_draft)
    graph.add_node("send", inner.compile())
    graph.add_edge(START, "draft")
    graph.add_edge("draft", "send")
    return graph.compile()


async def first_node(state: Review) -> Review:
    """Have an effect once."""
    journal("first node")
    return {"draft": "One"}


async def second_node(state: Review) -> Review:
    """Wait until the file `KHALA_APP_JOURNAL.go` is there."""
    journal("second node")
    while not Path(os.environ["KHALA_APP_JOURNAL"] + ".go").exists():
        await asyncio.sleep(0.02)
    return {"sent": state["draft"] + " two"}


def build_slow() -> Any:
    """Two nodes, the second of which waits."""
    graph = StateGraph(Review)
    graph.add_node("first", first_node)
    graph.add_node("second", second_node)
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    return graph.compile()


graph_clerk = langgraph_agent("graph-clerk", build_graph(), guests=True)
graph_review = langgraph_agent(
    "graph-review",
    build_review(),
    make_input=lambda context: {"draft": ""},
    make_output=lambda state: json.dumps(state["decisions"]),
    guests=True,
)
graph_slow = langgraph_agent(
    "graph-slow",
    build_slow(),
    make_input=lambda context: {"draft": ""},
    make_output=lambda state: str(state["sent"]),
    guests=True,
)


def openai_model(name: str) -> OpenAIChatCompletionsModel:
    """A model of the local provider for the OpenAI Agents SDK."""
    client = AsyncOpenAI(base_url=URL, api_key="key", max_retries=0)
    return OpenAIChatCompletionsModel(model=name, openai_client=client)


openai_tools = [
    function_tool(order_status),
    function_tool(refund, needs_approval=True),
    function_tool(wait),
]
openai_clerk = OpenAIAgent[None](
    name="Clerk", instructions="You are a clerk.", model=openai_model("openai"), tools=[*openai_tools]
)
porter = OpenAIAgent[None](
    name="Porter", instructions="You are a porter.", model=openai_model("porter"), handoffs=[openai_clerk]
)
openai_judge = OpenAIAgent[None](name="Judge", model=openai_model("judge"), output_type=Verdict)

agents_clerk = openai_agent("openai-clerk", openai_clerk, guests=True)
agents_porter = openai_agent("openai-porter", porter, guests=True)
agents_judge = openai_agent("openai-judge", openai_judge, guests=True)
