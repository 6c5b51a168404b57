"""MCP servers may have models called during their calls, if their configuration allows it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from khala.domain import ids
from khala.models.port import Prompt
from khala.tools.mcp import McpConnections
from khala.tools.mcp.active_calls import MAX_SAMPLES
from khala.tools.port import CallContext, SampledText, Sampler, ToolError
from tests.support.agents import Agent, act, call, rules, with_peculiar
from tests.support.mcp_client import call_context, connected, over_http, stdio, use
from tests.support.mcp_server import calls

both = pytest.mark.parametrize("how", ["stdio", "http"])


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@asynccontextmanager
async def server_over(how: str, journal: Path, **settings: Any) -> AsyncIterator[McpConnections]:
    """Connections to the test server, which may have models called."""
    given: dict[str, Any] = {"sampling": True} | settings
    if how == "stdio":
        async with connected(stdio(journal, **given)) as connections:
            yield connections
        return
    async with over_http(journal) as http, connected(http.server(**given)) as connections:
        yield connections


class FakeModel:
    """Answers with its name and the prompt, or waits for ever."""

    def __init__(self, name: str = "fake", *, hangs: bool = False, fails: bool = False) -> None:
        self.name = name
        self.prompts: list[Prompt] = []
        self.began = asyncio.Event()
        self.cancelled = False
        self._hangs = hangs
        self._fails = fails

    async def sample(self, prompt: Prompt) -> SampledText:
        self.prompts.append(prompt)
        self.began.set()
        if self._fails:
            raise ToolError("The budget is used up.")
        try:
            if self._hangs:
                await asyncio.Event().wait()
        finally:
            self.cancelled = self._hangs
        return SampledText(text=f"{self.name} says {prompt.turns[-1].text}", model=self.name, truncated=True)


def call_with(sample: Sampler | None) -> CallContext:
    return msgspec.structs.replace(call_context(ids.new().hex), sample=sample)


@both
async def test_a_server_that_is_allowed_to_gets_a_models_text(how: str, journal: Path) -> None:
    model = FakeModel()
    params = {"systemPrompt": "Be brief.", "temperature": 0.5, "stopSequences": ["."], "maxTokens": 1_000_000}
    async with server_over(how, journal) as connections:
        result = await use(connections, "peculiar__ask", call_with(model.sample), text="hello", params=params)
    answer = json.loads(result.output)
    assert answer["content"] == {"type": "text", "text": "fake says hello"}
    assert (answer["model"], answer["role"], answer["stopReason"]) == ("fake", "assistant", "maxTokens")
    [prompt] = model.prompts
    assert (prompt.system, prompt.max_output_tokens) == ("Be brief.", 8192)
    assert (prompt.generation.temperature, prompt.generation.stop) == (0.5, ["."])


@both
async def test_a_server_that_is_not_allowed_to_gets_none(how: str, journal: Path) -> None:
    model = FakeModel()
    async with server_over(how, journal, sampling=False) as connections:
        assert "sampling" not in (await use(connections, "peculiar__capabilities")).output
        refused = await use(connections, "peculiar__ask", call_with(model.sample))
        assert "refused" in refused.output
    assert not model.prompts


async def test_requests_that_are_not_supported_are_refused_with_a_reason(journal: Path) -> None:
    model = FakeModel()
    image = {"role": "user", "content": {"type": "image", "data": "AAAA", "mimeType": "image/png"}}
    assistant = {"role": "assistant", "content": {"type": "text", "text": "hello"}}
    async with server_over("stdio", journal) as connections:
        for params, reason in (
            ({"messages": [image]}, "only text"),
            ({"messages": []}, "1 to 100 messages"),
            ({"messages": [assistant]}, "the last one of the user"),
            ({"maxTokens": 0}, "maxTokens must be positive"),
            ({"temperature": 9}, "temperature"),
            ({"stopSequences": ["a"] * 5}, "stop sequences"),
            ({"systemPrompt": "a" * 200_001}, "200,000 characters"),
        ):
            result = await use(connections, "peculiar__ask", call_with(model.sample), params=params)
            assert result.output.startswith("refused: ")
            assert reason in result.output
        assert "belongs to no run" in (await use(connections, "peculiar__ask", call_with(None))).output
        failing = call_with(FakeModel(fails=True).sample)
        assert (await use(connections, "peculiar__ask", failing)).output == "refused: The budget is used up."
        many = await use(connections, "peculiar__ask", call_with(model.sample), times=MAX_SAMPLES + 1)
        assert "At most 10 model calls" in many.output
    assert len(model.prompts) == MAX_SAMPLES


@both
async def test_with_several_calls_the_request_has_to_name_its_call(how: str, journal: Path) -> None:
    slow, quick = FakeModel("slow", hangs=True), FakeModel("quick")
    async with server_over(how, journal) as connections:
        first = asyncio.create_task(use(connections, "peculiar__ask", call_with(slow.sample)))
        await asyncio.wait_for(slow.began.wait(), 20)
        unnamed = await use(connections, "peculiar__ask", call_with(quick.sample))
        assert "2 calls are running" in unnamed.output
        named = await use(connections, "peculiar__ask", call_with(quick.sample), named=True, text="hi")
        assert json.loads(named.output)["content"]["text"] == "quick says hi"
        first.cancel()
        await asyncio.wait({first})
        after = await use(connections, "peculiar__ask", call_with(quick.sample))
        assert "just cancelled" in after.output, "the server may still work on the cancelled call"
        assert json.loads((await use(connections, "peculiar__ask", call_with(quick.sample), named=True)).output)
    assert (len(slow.prompts), len(quick.prompts)) == (1, 2)


@both
async def test_a_model_call_ends_with_the_call_that_it_is_for(how: str, journal: Path) -> None:
    for ending in ("cancel", "timeout"):
        model = FakeModel(hangs=True)
        async with server_over(how, journal, timeout=30 if ending == "cancel" else 1) as connections:
            call = asyncio.create_task(use(connections, "peculiar__ask", call_with(model.sample)))
            await asyncio.wait_for(model.began.wait(), 20)
            if ending == "cancel":
                call.cancel()
            await asyncio.wait({call}, timeout=20)
            assert call.done()
            assert model.cancelled, "the model call has ended when the call has"
            assert not calls(journal, "ask", "sampled")


async def test_a_run_pays_for_the_model_calls_of_its_tools_and_has_their_receipts(
    database_url: str, tmp_path: Path
) -> None:
    async with with_peculiar(database_url, tmp_path, SAMPLING="yes") as (server, _):
        thread = await server.thread()
        await rules(thread, _all="allow")
        asking = call("peculiar__ask", text="/text Warp in. /words=40", params={"systemPrompt": "Be brief."})
        agent = await act(thread, f"/pace=0 {asking} /say Done.")
        run = await agent.ended()
        assert run["status"] == "final"
        assert "word40" in str(await _output(agent))
        assert "word40" not in await agent.text(), "the text is for the server, and no part of the answer"
        models, [tool] = await agent.receipts("model"), await agent.receipts("tool")
        assert [receipt.get("toolCallId") for receipt in models] == [None, tool["toolCallId"], None]
        [sampled] = [receipt for receipt in models if receipt.get("toolCallId")]
        assert sampled["data"]["outcome"] == "stop"
        total = sum(receipt["data"]["usage"]["outputTokens"] for receipt in models)
        assert (run["finish"]["usage"]["outputTokens"], sampled["data"]["usage"]["outputTokens"] > 0) == (total, True)
        context = await thread.http.get(f"/api/runs/{agent.run_id}/context", headers=thread.headers)
        assert len(context.raise_for_status().json()["calls"]) == 2, "the request of the server is no conversation"

        long = call("peculiar__ask", text="/pace=0 /words=5000", params={"maxTokens": 8000})
        poor = await act(thread, f"/pace=0 {long} /say Done.", budget={"tokens": 900})
        assert (await poor.ended())["finish"]["reason"] == "budget"
        assert [receipt["data"]["outcome"] for receipt in await poor.receipts("model")][1] == "budget_exhausted"
        assert "refused" in str(await _output(poor))


async def _output(agent: Agent) -> Any:
    """The output of the run's only tool call."""
    [result] = await agent.parts("tool-result")
    return result["output"]
