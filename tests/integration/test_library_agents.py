"""Agents of Pydantic AI, of LangGraph and of the OpenAI Agents SDK, which answer as agents of Khala."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from tests.support.agents import Agent
from tests.support.client import Thread
from tests.support.in_process import InProcessServer
from tests.support.library_scene import AGENTS_MODULE, Provider, library_settings, tools
from tests.support.providers import Reply, serving
from tests.support.server import ROOT
from tests.support.shared_server import shared
from tests.support.wires import UseTool
from tests.system.test_docs_examples import write_files

pytestmark = pytest.mark.asyncio(loop_scope="module")
PAGE = ROOT / "docs" / "how-to" / "agent-libraries.md"
EXAMPLES = ("pydantic_shop", "graph_shop", "openai_shop", "through_khala")
each_library = pytest.mark.parametrize("name", ["pydantic-clerk", "graph-clerk", "openai-clerk"])
calling_tools = pytest.mark.parametrize("name", ["pydantic-clerk", "openai-clerk"])
LOOK_UP = Reply(tokens=("I ", "look."), calls=(UseTool(name="order_status", args={"order": "A-17"}),))


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("app") / "journal"
    path.touch()
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider() -> AsyncIterator[Provider]:
    async with serving() as server:
        yield Provider(server)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(postgres_url: str, template: str, journal: Path, provider: Provider) -> AsyncIterator[InProcessServer]:
    with library_settings(journal, provider) as patch:
        write_files(PAGE, journal.parent, {})
        patch.syspath_prepend(str(journal.parent))
        patch.setenv("OPENAI_BASE_URL", f"{provider.server.url}/v1")
        patch.setenv("OPENAI_API_KEY", "key")
        async with shared(
            postgres_url, template, KHALA_APP=f"{AGENTS_MODULE},{','.join(EXAMPLES)}", KHALA_WELCOME=""
        ) as inside:
            yield inside


@pytest_asyncio.fixture(loop_scope="module")
async def thread(server: InProcessServer) -> Thread:
    return await server.thread()


async def start(thread: Thread, name: str, text: str = "Hi", **options: Any) -> Agent:
    return Agent(thread, await thread.send(text, options={"agent": f"app:{name}"} | options))


async def done(thread: Thread, name: str, text: str = "Hi", status: str = "final") -> Agent:
    agent = await start(thread, name, text)
    ended = await agent.ended()
    assert ended["status"] == status, await agent.text()
    return agent


@each_library
async def test_text_tools_history_and_usage_of_a_library_are_those_of_the_run(
    thread: Thread, provider: Provider, name: str
) -> None:
    provider.script(Reply(tokens=("Hello", ".")))
    await done(thread, name, "First")
    provider.script(LOOK_UP, Reply(tokens=("It ", "is ", "paid."), usage=(20, 9)))
    agent = await done(thread, name, "Second")
    assert await agent.text() == "I look.It is paid."
    [card] = await tools(agent)
    assert (card["tool"], card["state"], card["args"]) == ("order_status", "completed", {"order": "A-17"})
    assert card["output"] == {"order": "A-17", "state": "paid"}
    said = [(one["role"], one.get("content")) for one in provider.messages(0)]
    assert said == [("system", "You are a clerk."), ("user", "First"), ("assistant", "Hello."), ("user", "Second")]
    receipts = await agent.receipts("model")
    assert [receipt["data"]["usage"] for receipt in receipts] == [
        {"inputTokens": 11, "outputTokens": 7},
        {"inputTokens": 20, "outputTokens": 9},
    ]
    finish = (await agent.message())["finish"]
    assert finish["usage"] == {"inputTokens": 31, "outputTokens": 16}


@calling_tools
async def test_a_person_approves_a_call_of_a_library_with_other_arguments(
    thread: Thread, provider: Provider, journal: Path, name: str
) -> None:
    ask = Reply(
        tokens=("Sure.",),
        calls=(
            UseTool(name="refund", args={"order": "A-17", "amount": 39}, id="use-1"),
            UseTool(name="order_status", args={"order": "C-2"}, id="use-2"),
        ),
    )
    provider.script(ask, Reply(tokens=("Done",)))
    before = journal.read_text()
    agent = await start(thread, name)
    await agent.status("blocked")
    cards = {card["tool"]: card for card in await agent.cards()}
    assert (cards["refund"]["state"], cards["order_status"]["state"]) == ("blocked", "completed")
    edited = {"order": "A-17", "amount": 5}
    await agent.decide(cards["refund"]["toolCallId"], approved=True, editedArgs=edited)
    assert (await agent.ended())["status"] == "final"
    assert await agent.text() == "Sure.Done"
    effects = journal.read_text().removeprefix(before).splitlines()
    assert sorted(effects) == ["order_status C-2", "refund A-17 5"]
    cards = {card["tool"]: card for card in await agent.cards()}
    assert (cards["refund"]["args"], cards["refund"]["output"]) == (edited, "Paid 5 back.")
    assert len(provider.server.calls) == 2, "the reply that asked for the call is not generated again"
    results = [one["content"] for one in provider.messages(1) if one["role"] == "tool"]
    assert any("Paid 5 back." in result for result in results)
    assert any("paid" in result for result in results)


@calling_tools
async def test_a_library_learns_that_a_call_was_denied(
    thread: Thread, provider: Provider, journal: Path, name: str
) -> None:
    provider.script(
        Reply(tokens=(), calls=(UseTool(name="refund", args={"order": "D-4", "amount": 1}),)), Reply(tokens=("Pity.",))
    )
    agent = await start(thread, name)
    await agent.status("blocked")
    [card] = await agent.cards()
    await agent.decide(card["toolCallId"], approved=False, reason="Too late.")
    assert (await agent.ended())["status"] == "final"
    assert (await agent.text(), await agent.states()) == ("Pity.", ["failed"])
    assert "Too late." in str(provider.messages(1)[-1]["content"])
    assert "refund D-4" not in journal.read_text()


async def test_a_tool_of_pydantic_ai_may_ask_while_it_runs_and_may_ask_for_another_try(
    thread: Thread, provider: Provider, journal: Path
) -> None:
    provider.script(
        Reply(tokens=(), calls=(UseTool(name="close", args={"order": "A-17"}),)),
        Reply(tokens=(), calls=(UseTool(name="order_status", args={"order": "B-1"}),)),
        Reply(tokens=("Closed.",)),
    )
    agent = await start(thread, "pydantic-clerk")
    await agent.status("blocked")
    [card] = await agent.cards()
    await agent.decide(card["toolCallId"], approved=True)
    assert (await agent.ended())["status"] == "final"
    assert await agent.states() == ["completed", "failed"]
    assert journal.read_text().count("close A-17") == 1
    assert "There is no order B-1." in str(provider.messages(2)[-1]["content"])


@pytest.mark.parametrize("name", ["pydantic-judge", "openai-judge"])
async def test_structured_output_of_a_library_is_stored(thread: Thread, provider: Provider, name: str) -> None:
    output = {"city": "Ulm", "score": 7}
    by_tool = Reply(tokens=(), calls=(UseTool(name="final_result", args=output),))
    provider.script(by_tool if name == "pydantic-judge" else Reply(tokens=(json.dumps(output),)))
    agent = await done(thread, name)
    [card] = await agent.cards()
    assert (card["tool"], card["output"]) == ("final_result", output)
    assert json.loads(await agent.text()) == output


@each_library
async def test_an_error_of_a_model_of_a_library_ends_the_run_with_its_reason(
    thread: Thread, provider: Provider, name: str
) -> None:
    provider.script(Reply(status=400, message=f"key sk-secret is wrong, as is sk-{'a' * 40} of {'x' * 2_000}"))
    with capture_logs() as logs:
        agent = await done(thread, name, status="error")
    assert (await agent.text()).startswith("The model ")
    assert "400" in await agent.text()
    assert "sk-secret" not in await agent.text()
    [logged] = [line for line in logs if line["event"] == "library_model_call_failed"]
    assert (logged["status"], len(logged["body"])) == (400, 1_000)
    assert "is wrong, as is [redacted] of xx" in logged["body"]


@each_library
async def test_canceling_a_run_stops_the_tool_and_the_model_of_a_library(
    thread: Thread, provider: Provider, journal: Path, name: str
) -> None:
    before = journal.read_text().count("wait cancelled")
    provider.script(Reply(tokens=(), calls=(UseTool(name="wait"),)))
    agent = await start(thread, name)
    async with asyncio.timeout(20):
        while [card["state"] for card in await tools(agent)] != ["running"]:
            await asyncio.sleep(0.02)
    await agent.cancel()
    assert (await agent.ended())["status"] == "canceled"
    assert journal.read_text().count("wait cancelled") == before + 1
    provider.script(Reply(tokens=("One ", "two"), hang_after=1))
    agent = await start(thread, name)
    call = await provider.server.call(0, timeout=20)
    await agent.cancel()
    assert (await agent.ended())["status"] == "canceled"
    async with asyncio.timeout(10):
        await call.gone.wait()


@each_library
async def test_the_usage_of_a_library_ends_a_run_that_is_over_its_budget(
    thread: Thread, provider: Provider, name: str
) -> None:
    provider.script(LOOK_UP, Reply(tokens=("Never.",)))
    agent = await start(thread, name, budget={"tokens": 10})
    assert (await agent.ended())["status"] == "error"
    assert (await agent.message())["finish"]["reason"] == "budget"
    assert len(provider.server.calls) == 1


async def test_an_interrupt_of_a_tool_of_a_graph_becomes_an_approval(
    thread: Thread, provider: Provider, journal: Path
) -> None:
    use = UseTool(name="refund", args={"order": "G-1", "amount": 39})
    provider.script(Reply(tokens=("Sure.",), calls=(use,)), Reply(tokens=("Done",)))
    agent = await start(thread, "graph-clerk")
    await agent.status("blocked")
    waiting = (await tools(agent))[-1]
    assert (waiting["tool"], waiting["state"], waiting["args"]["amount"]) == ("refund_approval", "blocked", 39)
    edited = {"order": "G-1", "amount": 4}
    await agent.decide(waiting["toolCallId"], approved=True, editedArgs=edited)
    assert (await agent.ended())["status"] == "final"
    assert await agent.text() == "Sure.Done"
    assert journal.read_text().count("refund G-1 4") == 1
    assert len(provider.server.calls) == 2
    cards = {card["tool"]: card for card in await tools(agent)}
    assert (cards["refund"]["state"], cards["refund"]["output"]) == ("completed", "Paid 4 back.")


async def test_a_graph_asks_within_a_subgraph_as_often_as_it_likes(thread: Thread, journal: Path) -> None:
    before = journal.read_text().count("draft")
    agent = await start(thread, "graph-review")
    await agent.status("blocked")
    first = (await tools(agent))[-1]
    assert (first["tool"], first["args"]) == ("send_mail", {"text": "Dear Ann"})
    await agent.decide(first["toolCallId"], approved=True, editedArgs={"text": "Dear Bob"})
    async with asyncio.timeout(20):
        while len(await tools(agent)) < 2:
            await asyncio.sleep(0.02)
    await agent.status("blocked")
    second = (await tools(agent))[-1]
    assert (second["tool"], second["args"]) == ("interrupt", {"value": "Really?"})
    await agent.decide(second["toolCallId"], approved=False, reason="No.")
    assert (await agent.ended())["status"] == "final"
    edit, denied = json.loads(await agent.text())
    assert edit == {"type": "edit", "edited_action": {"name": "send_mail", "args": {"text": "Dear Bob"}}}
    assert (denied["approved"], "No." in denied["reason"]) == (False, True)
    assert journal.read_text().count("draft") == before + 1, "the first node is not repeated"
    nodes = [card["tool"] for card in await agent.cards() if card["tool"].startswith("node-")]
    assert nodes == ["node-draft", "node-act", "node-send"]


async def test_a_handoff_of_the_openai_agents_sdk_is_shown_and_survives_an_approval(
    thread: Thread, provider: Provider, journal: Path
) -> None:
    provider.script(
        Reply(tokens=("Wait.",), calls=(UseTool(name="transfer_to_clerk", args={}, id="a"),)),
        Reply(tokens=(), calls=(UseTool(name="refund", args={"order": "H-1", "amount": 2}, id="b"),)),
        Reply(tokens=("Done.",)),
    )
    agent = await start(thread, "openai-porter")
    await agent.status("blocked")
    handoff, waiting = await agent.cards()
    assert (handoff["tool"], handoff["output"]) == ("transfer_to_clerk", {"assistant": "Clerk"})
    await agent.decide(waiting["toolCallId"], approved=True)
    assert (await agent.ended())["status"] == "final"
    assert await agent.text() == "Wait.Done."
    assert journal.read_text().count("refund H-1") == 1
    assert [call.body["model"] for call in provider.server.calls] == ["porter", "openai", "openai"]


@pytest.mark.parametrize("name", ["pydantic-shop", "graph-shop", "openai-shop"])
async def test_the_examples_of_the_page_ask_before_they_pay_back(thread: Thread, provider: Provider, name: str) -> None:
    hand_over = Reply(tokens=(), calls=(UseTool(name="transfer_to_cashier", id="a"),))
    ask = Reply(tokens=("Wait. ",), calls=(UseTool(name="refund", args={"order": "A-17", "amount": 39}, id="b"),))
    provider.script(*[hand_over][: name == "openai-shop"], ask, Reply(tokens=("Done.",)))
    agent = await start(thread, name)
    await agent.status("blocked")
    waiting = (await tools(agent))[-1]
    arguments = {key: value for key, value in waiting["args"].items() if key != "action"}
    edited = waiting["args"] | {"amount": 5}
    assert arguments == {"order": "A-17", "amount": 39}
    await agent.decide(waiting["toolCallId"], approved=True, editedArgs=edited)
    assert (await agent.ended())["status"] == "final"
    assert await agent.text() == "Wait. Done."
    [paid] = [card["output"] for card in await tools(agent) if card["tool"] == "refund"]
    assert paid == "Paid 5 back for A-17."
