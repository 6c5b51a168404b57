"""Agents of Pydantic AI, of LangGraph and of the OpenAI Agents SDK, which answer in workers."""

import asyncio
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import Tool
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from khala.sdk.adapters import pydantic_ai
from khala_client.worker import RunContext, Worker
from tests.support.account_with_data import Account, account, own_thread
from tests.support.agents import Agent
from tests.support.in_process import InProcessServer
from tests.support.library_scene import AGENTS_MODULE, Provider, library_settings, tools
from tests.support.providers import Reply, in_steps, serving
from tests.support.remote_workers import RemoteScene, create_agent, create_token, remote_scene, running
from tests.support.server import ROOT
from tests.support.shared_server import server_fixture
from tests.support.wires import UseTool

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("app") / "journal"
    path.touch()
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider() -> AsyncIterator[Provider]:
    async with serving() as server:
        yield Provider(server)


server = server_fixture(KHALA_LEASE_SECONDS="3")


@pytest_asyncio.fixture(loop_scope="module")
async def scene(server: InProcessServer) -> AsyncIterator[RemoteScene]:
    async with remote_scene(server) as made:
        yield made


async def test_an_agent_of_pydantic_ai_answers_in_a_worker(scene: RemoteScene, server: InProcessServer) -> None:
    paid: list[int] = []

    async def refund(amount: int) -> str:
        """Pay back."""
        paid.append(amount)
        return f"Paid {amount}."

    use = UseTool(name="refund", args={"amount": 39}, id="a")
    replies = in_steps(Reply(tokens=("Sure. ",), calls=(use,)), Reply(tokens=("Done.",)))
    async with serving(default=replies) as provider:
        model = OpenAIChatModel("clerk", provider=OpenAIProvider(base_url=f"{provider.url}/v1", api_key="key"))
        clerk: PydanticAgent[None, str] = PydanticAgent(model, tools=[Tool(refund, requires_approval=True)])
        worker = Worker(server.url, scene.token["token"], grace_seconds=0, hold_seconds=0.1)

        @worker.agent(scene.agent, replay=False)
        async def answer(context: RunContext) -> None:
            await pydantic_ai.answer(context, clerk)

        async with running(worker):
            run = Agent(scene.thread, await scene.send("Pay me back"))
            await run.status("blocked")
            [card] = await run.cards()
            assert (card["tool"], card["args"]) == ("refund", {"amount": 39})
            await run.decide(card["toolCallId"], approved=True, editedArgs={"amount": 5})
            assert (await run.ended())["status"] == "final"
    assert (await run.text(), paid, len(provider.calls)) == ("Sure. Done.", [5], 2)
    [card] = await run.cards()
    assert (card["state"], card["output"]) == ("completed", "Paid 5.")
    assert (await run.message())["finish"]["usage"] == {"inputTokens": 22, "outputTokens": 14}


async def test_a_library_calls_models_through_khala(scene: RemoteScene, server: InProcessServer) -> None:
    made = await scene.who.http.post("/api/tokens", json={"name": "models"})
    provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key=made.raise_for_status().json()["token"])
    clerk: PydanticAgent[None, str] = PydanticAgent(OpenAIChatModel("demo", provider=provider))
    worker = Worker(server.url, scene.token["token"], grace_seconds=0)

    @worker.agent(scene.agent, replay=False)
    async def answer(context: RunContext) -> None:
        await pydantic_ai.answer(context, clerk, report_usage=False)

    async with running(worker):
        run = Agent(scene.thread, await scene.send("/say through Khala"))
        assert (await run.ended())["status"] == "final"
    assert (await run.text()).strip() == "through Khala"
    assert await run.receipts("model") == []


async def test_a_graph_in_a_killed_worker_goes_on_at_the_next_node(
    scene: RemoteScene, server: InProcessServer, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    journal.touch()
    environment = {
        **os.environ, "KHALA_SERVER": server.url, "KHALA_TOKEN": scene.token["token"], "KHALA_AGENT": scene.agent,
        "KHALA_APP_JOURNAL": str(journal),
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.support.library_worker"]

    def worker_id() -> int:
        return int((tmp_path / "journal.pid").read_text())

    supervisor = subprocess.Popen(command, env=environment, cwd=ROOT)
    try:
        sent = await scene.send("Go")
        async with asyncio.timeout(60):
            while "second node" not in journal.read_text():
                await asyncio.sleep(0.02)
        killed = worker_id()
        os.kill(killed, signal.SIGKILL)
        (tmp_path / "journal.go").touch()
        assert (await scene.thread.ended(sent["runId"]))["status"] == "final"
        assert worker_id() != killed
    finally:
        if (tmp_path / "journal.pid").exists():
            os.kill(worker_id(), signal.SIGKILL)
        supervisor.kill()
        supervisor.wait()
    assert await scene.answer_text() == "One two"
    assert journal.read_text().splitlines() == ["first node", "second node", "second node"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def owner(server: InProcessServer, journal: Path, provider: Provider) -> AsyncIterator[Account]:
    """An account whose worker answers with the graph, and with the agent of the OpenAI Agents SDK."""
    with library_settings(journal, provider):
        library = importlib.import_module(AGENTS_MODULE)
        agents = {"graph-clerk": library.graph_clerk, "openai-clerk": library.agents_clerk}
        async with account(server) as made:
            for name in agents:
                await create_agent(made, name)
            token = await create_token(made, *agents)
            worker = Worker(server.url, token["token"], grace_seconds=0, hold_seconds=0.3)
            for name, agent in agents.items():
                worker.agent(name, replay=False)(agent.function)
            answering = asyncio.create_task(worker.run())
            yield made
            worker.stop()
            await answering


async def waiting_card(agent: Agent, *, given_back: bool) -> dict[str, Any]:
    """The call that waits for a person: as soon as it waits, or when the worker has given the run back."""
    async with asyncio.timeout(20):
        while not (waiting := [card for card in await tools(agent) if card["state"] == "blocked"]):
            await asyncio.sleep(0.02)
    if given_back:
        await agent.status("blocked")
    return waiting[0]


@pytest.mark.parametrize("given_back", [False, True])
async def test_an_interrupt_of_a_graph_in_a_worker_becomes_an_approval(
    owner: Account, provider: Provider, journal: Path, *, given_back: bool
) -> None:
    order = f"W-{given_back:d}"
    use = UseTool(name="refund", args={"order": order, "amount": 39})
    provider.script(Reply(tokens=("Sure.",), calls=(use,)), Reply(tokens=("Done",)))
    thread = await own_thread(owner)
    agent = Agent(thread, await thread.send("Pay me back. " * 500, options={"agent": "graph-clerk"}))
    waiting = await waiting_card(agent, given_back=given_back)
    assert (waiting["tool"], waiting["args"]["amount"]) == ("refund_approval", 39)
    edited = {"order": order, "amount": 4}
    await agent.decide(waiting["toolCallId"], approved=True, editedArgs=edited)
    assert (await agent.ended())["status"] == "final"
    assert await agent.text() == "Sure.Done"
    assert journal.read_text().count(f"refund {order} 4") == 1
    assert len(provider.server.calls) == 2, "the node that asked the model is not executed again"
    cards = {card["tool"]: card for card in await agent.cards()}
    assert (cards["refund"]["state"], cards["refund"]["output"]) == ("completed", "Paid 4 back.")
    assert cards["node-model"]["blob"]["size"] > 5_000, "a state that is too large for a part is in a blob"


@pytest.mark.parametrize("given_back", [False, True])
async def test_an_agent_of_the_openai_agents_sdk_answers_in_a_worker(
    owner: Account, provider: Provider, journal: Path, *, given_back: bool
) -> None:
    order = f"X-{given_back:d}"
    ask = Reply(
        tokens=("Sure.",),
        calls=(
            UseTool(name="refund", args={"order": order, "amount": 39}, id="use-1"),
            UseTool(name="order_status", args={"order": order}, id="use-2"),
        ),
    )
    provider.script(ask, Reply(tokens=("Done",)))
    thread = await own_thread(owner)
    agent = Agent(thread, await thread.send("Pay me back", options={"agent": "openai-clerk"}))
    waiting = await waiting_card(agent, given_back=given_back)
    await agent.decide(waiting["toolCallId"], approved=True, editedArgs={"order": order, "amount": 5})
    assert (await agent.ended())["status"] == "final"
    assert await agent.text() == "Sure.Done"
    effects = [line for line in journal.read_text().splitlines() if order in line]
    assert sorted(effects) == [f"order_status {order}", f"refund {order} 5"]
    assert len(provider.server.calls) == 2, "the reply that asked for the call is not generated again"
    assert (await agent.message())["finish"]["usage"] == {"inputTokens": 22, "outputTokens": 14}
