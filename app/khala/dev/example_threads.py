"""Example threads of a development server: real messages, which the demo model and the project's agents answer."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid5

import httpx

from khala.sdk.loading import App

NAMESPACE = UUID("6f1c2a52-6a51-4a3e-9d0e-0d5a3e0f6c11")
REQUEST_TIMEOUT_SECONDS = 30.0
EXAMPLES: Mapping[str, str] = {
    "A short question": "What can you do? /help",
    "A long answer": "/words=400 /pace=200",
    "An answer that fails": "/fail=5",
    "A tool call": '/call todo_add {"text": "Try the console"}',
}
"""Messages for the demo model, by the titles of their threads."""
MAX_AGENT_EXAMPLES = 10


async def seed(address: str, token: str, app: App) -> int:
    """Create the example threads that are missing. Returns how many there are. Raises `httpx.HTTPError`.

    Ids follow from the titles, so that a second call creates nothing.
    """
    prepared: list[tuple[str, str, dict[str, Any]]] = [
        (title, text, {"model": "demo", "autopilot": True}) for title, text in EXAMPLES.items()
    ]
    agents = [one.agent for one in app.agents.values() if one.agent.examples][:MAX_AGENT_EXAMPLES]
    prepared += [(one.title or one.name, one.examples[0], {"model": "demo", "agent": one.name}) for one in agents]
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(
        base_url=f"{address}/api", headers=headers, timeout=REQUEST_TIMEOUT_SECONDS, trust_env=False
    ) as http:
        for title, text, options in prepared:
            thread_id = uuid5(NAMESPACE, title)
            body = {"id": str(thread_id), "title": title}
            (await http.post("/threads", json=body)).raise_for_status()
            sent = {"messageId": str(uuid5(thread_id, text)), "text": text, "options": options}
            (await http.post(f"/threads/{thread_id}/send", json=sent)).raise_for_status()
    return len(prepared)
