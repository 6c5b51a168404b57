"""OpenAI's client for Node, unmodified."""

from pathlib import Path
from typing import Any

from tests.support import node_packages

PROGRAM = Path(__file__).parent / "talk.mjs"


async def talk(base_url: str, key: str) -> dict[str, Any]:
    """Run the program against this server; returns the results that it prints."""
    return await node_packages.run(PROGRAM, OPENAI_BASE_URL=base_url, OPENAI_API_KEY=key)
