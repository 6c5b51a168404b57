"""Agents of other libraries in tests: their settings, the file of their effects, and the replies of their provider."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.agents import Agent
from tests.support.providers import Call, Reply, Server

AGENTS_MODULE = "tests.support.library_agents"


class Provider:
    """The replies of the local provider, by the index of the call since `script`."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.replies: Sequence[Reply] = ()
        server.default = self.reply

    def script(self, *replies: Reply) -> None:
        self.server.calls.clear()
        self.replies = replies

    def reply(self, _: Call) -> Reply:
        return self.replies[min(len(self.server.calls), len(self.replies)) - 1]

    def messages(self, index: int) -> list[dict[str, Any]]:
        return list(self.server.calls[index].body["messages"])


@contextmanager
def library_settings(journal: Path, provider: Provider) -> Iterator[pytest.MonkeyPatch]:
    """The environment in which the module of the agents is imported: anew, by those who open this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KHALA_APP_JOURNAL", str(journal))
        patch.setenv("KHALA_TEST_PROVIDER", provider.server.url)
        # Both read the address of the provider when they are imported, and another test may have imported them.
        for name in (AGENTS_MODULE, "tests.support.pydantic_agents"):
            sys.modules.pop(name, None)
        yield patch


async def tools(agent: Agent) -> list[dict[str, Any]]:
    """The tool calls of the answer, without those that store the state of a graph."""
    return [card for card in await agent.cards() if not card["tool"].startswith("node-")]
