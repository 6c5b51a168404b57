"""Prompts and resources in Python, as an application defines them for MCP clients."""

import asyncio
from typing import Literal

from khala.api.mcp.resource_contents import MAX_RESOURCE_BYTES
from khala.sdk import PromptMessage, ReaderContext, ToolError, ToolFile, prompt, resource

MODULE = __name__
STOCK = {"kettle": 3, "cup": 12}


@prompt(title="Write to a customer")
async def customer_letter(customer: str, tone: Literal["formal", "friendly"] = "formal", lines: int = 3) -> str:
    """Write a letter.

    Args:
        customer: The name.
        tone: How it sounds.
        lines: How long it is.

    """
    return f"Write {lines + 1} {tone} lines to {customer}."


@prompt(guests=True)
def dialogue() -> list[PromptMessage | ToolFile]:
    """Begin a dialogue."""
    file = ToolFile(data=b"a,b\n1,2", media_type="text/csv", uri="shop://table")
    return [PromptMessage("Ask me.", "user"), PromptMessage("What?", "assistant"), file]


@prompt
def broken_prompt() -> int:
    """Return something else."""
    return 3


@prompt(timeout=0.05)
async def slow_prompt() -> str:
    """Take long."""
    await asyncio.sleep(60)
    raise AssertionError


@resource("shop://catalog", title="Catalog", guests=True)
def catalog() -> dict[str, int]:
    """What the shop has."""
    return STOCK


@resource("shop://stock/{item}")
def stock(item: str, reader: ReaderContext) -> str:
    """How many of an item there are."""
    if item not in STOCK:
        raise ToolError(f"There is no {item}.", code="not_found")
    return f"{STOCK[item]} for {'an account' if reader.user_id else 'a guest'}"


@resource("shop://reports/{year}/{+path}")
def report(year: int, path: str) -> bytes:
    """A report of a year."""
    return f"{year + 1} {path}".encode() + b"\0\xff"


@resource("shop://seasons/{season}")
def season(season: Literal["spring", "summer", "autumn"]) -> str:
    """A season."""
    return season


@resource("shop://huge")
def huge() -> bytes:
    """Too much."""
    return b"x" * (MAX_RESOURCE_BYTES + 1)


@resource("shop://crash")
def crash() -> str:
    """Fail."""
    raise RuntimeError("secret")


@resource("shop://hidden", guests=True)
def hidden_note() -> str:
    """A note that a rule of the operator denies."""
    raise AssertionError
