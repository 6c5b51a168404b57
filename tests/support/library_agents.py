"""Agents of other libraries, whose models are the local provider at `KHALA_TEST_PROVIDER`.

`KHALA_APP_JOURNAL` names the file of their effects.
"""

import json
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
from pydantic import SecretStr

from khala.sdk.adapters.langgraph import langgraph_agent
from khala.sdk.adapters.openai_agents import openai_agent
from tests.support.app_agents import journal
from tests.support.pydantic_agents import (
    URL,
    Verdict,
    order_status,
    pydantic_clerk,
    pydantic_judge,
    refund,
    wait,
)
from tests.support.slow_graph import Review

MODULE = __name__
__all__ = ["pydantic_clerk", "pydantic_judge"]


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


graph_clerk = langgraph_agent("graph-clerk", build_graph(), guests=True)
graph_review = langgraph_agent(
    "graph-review",
    build_review(),
    make_input=lambda context: {"draft": ""},
    make_output=lambda state: json.dumps(state["decisions"]),
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
