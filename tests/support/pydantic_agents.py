"""Agents of Pydantic AI, whose models are the local provider at `KHALA_TEST_PROVIDER`."""

import asyncio
import os

from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import ModelRetry
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import RunContext

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
