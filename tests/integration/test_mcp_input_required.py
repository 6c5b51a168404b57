"""MCP servers whose calls require input (version 2026-07-28): the person or a model gives it, or the call ends."""

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
from khala.tools.call_clock import CallClock
from khala.tools.mcp import McpConnections, session
from khala.tools.mcp.active_calls import MAX_QUESTIONS
from khala.tools.port import CallContext, SampledText, ToolError, UserAnswer, UserQuestion
from tests.support.agents import Agent, act, call, rules, with_peculiar
from tests.support.mcp_client import call_context, connected, eventually, over_http, use
from tests.support.mcp_server import PYLON, calls

FORM: dict[str, Any] = {
    "method": "elicitation/create",
    "params": {"message": "Which pylon?", "requestedSchema": PYLON},
}
PAGE = {
    "method": "elicitation/create",
    "params": {"mode": "url", "message": "Sign in.", "url": "https://auth.example.com/", "elicitationId": "e1"},
}
TEXT = {
    "method": "sampling/createMessage",
    "params": {"messages": [{"role": "user", "content": {"type": "text", "text": "Say pylon."}}], "maxTokens": 50},
}
ROOTS = {"method": "roots/list"}


class Person:
    """Answers the questions in order, and remembers them."""

    def __init__(self, *answers: UserAnswer) -> None:
        self.asked: list[UserQuestion] = []
        self._answers = answers

    async def __call__(self, question: UserQuestion) -> UserAnswer:
        self.asked.append(question)
        return self._answers[len(self.asked) - 1]


async def say_pylon(prompt: Prompt) -> SampledText:
    return SampledText(text=f"pylon after {len(prompt.turns)}", model="demo")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@asynccontextmanager
async def modern(journal: Path, **settings: Any) -> AsyncIterator[McpConnections]:
    """Connections to a server that speaks only the version without a handshake."""
    given: dict[str, Any] = {"elicitation": True, "sampling": True, **settings}
    async with over_http(journal, handshake=False) as http, connected(http.server(**given)) as connections:
        yield connections


def call_of(person: Person | None = None) -> CallContext:
    return msgspec.structs.replace(call_context(ids.new().hex), ask=person, sample=say_pylon)


async def responses(connections: McpConnections, context: CallContext, **args: Any) -> list[dict[str, Any]]:
    """The inputs that the server got in each round."""
    result = await use(connections, "peculiar__need", context, **args)
    assert result.ok, result.output
    return list(json.loads(result.output))


async def refusal(connections: McpConnections, context: CallContext, **args: Any) -> str:
    with pytest.raises(ToolError) as refused:
        await use(connections, "peculiar__need", context, **args)
    return refused.value.message


async def test_the_person_and_a_model_give_the_input_of_each_round(journal: Path) -> None:
    person = Person(
        UserAnswer(action="accept", content={"name": "Nexus"}),
        UserAnswer(action="accept"),
        UserAnswer(action="decline"),
        UserAnswer(action="cancel"),
    )
    async with modern(journal) as connections:
        rounds = [{"a": FORM, "b": TEXT}, {"c": PAGE}, {}, {"d": FORM, "e": FORM}]
        first, page, nothing, last = await responses(connections, call_of(person), rounds=rounds)
    assert first["a"] == {"action": "accept", "content": {"name": "Nexus"}}
    assert (first["b"]["content"]["type"], first["b"]["content"]["text"]) == ("text", "pylon after 1")
    assert page == {"c": {"action": "accept"}}
    assert nothing == {}
    assert last == {"d": {"action": "decline"}, "e": {"action": "cancel"}}
    assert [one.message for one in person.asked] == ["Which pylon?", "Sign in.", "Which pylon?", "Which pylon?"]
    assert person.asked[0].schema == PYLON | {"additionalProperties": False}
    assert len({one["key"] for one in calls(journal, "need")}) == 1, "all rounds are the same call"


async def test_a_call_without_a_person_declines(journal: Path) -> None:
    async with modern(journal) as connections:
        assert await responses(connections, call_of(), rounds=[{"a": FORM}]) == [{"a": {"action": "decline"}}]


async def test_input_that_is_not_allowed_or_cannot_be_shown_ends_the_call_with_the_reason(journal: Path) -> None:
    person = Person()
    bad = {"method": "elicitation/create", "params": FORM["params"] | {"message": " "}}
    async with modern(journal) as connections:
        assert "1 to 2,000 characters" in await refusal(connections, call_of(person), rounds=[{"a": bad}])
        assert "roots/list" in await refusal(connections, call_of(person), rounds=[{"a": ROOTS}])
        many = {f"a{number}": TEXT for number in range(21)}
        assert "21 inputs at once" in await refusal(connections, call_of(person), rounds=[many])
    async with modern(journal, elicitation=False, sampling=False) as connections:
        for request in (FORM, TEXT):
            reason = await refusal(connections, call_of(person), rounds=[{"a": request}])
            assert "which its configuration does not allow" in reason
    assert not person.asked


async def test_a_server_that_requires_input_for_ever_is_stopped(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    person = Person(*[UserAnswer(action="decline")] * MAX_QUESTIONS)
    async with asyncio.timeout(60), modern(journal) as connections:
        monkeypatch.setattr(session, "MAX_ROUNDS", 4)
        assert "required input 4 times" in await refusal(connections, call_of(person), rounds=[{}], endless=True)
        assert len(calls(journal, "need")) == 4
        monkeypatch.setattr(session, "MAX_ROUNDS", 20)
        assert "At most 10 questions" in await refusal(connections, call_of(person), rounds=[{"a": FORM}], endless=True)


async def test_the_time_of_a_call_stops_while_the_person_is_asked(journal: Path) -> None:
    async def ask(_: UserQuestion) -> UserAnswer:
        while asyncio.get_running_loop().time() < began + 2.2:  # Longer than the call may take.
            await asyncio.sleep(0.05)
        return UserAnswer(action="decline")

    async with modern(journal, timeout=2) as connections:
        began, clock = asyncio.get_running_loop().time(), CallClock(2)
        context = msgspec.structs.replace(call_of(), ask=ask, clock=clock)
        task = asyncio.create_task(responses(connections, context, rounds=[{"a": FORM}]))
        assert await clock.wait(task)
        assert task.result() == [{"a": {"action": "decline"}}]


async def test_a_cancelled_call_ends_while_the_person_is_asked(journal: Path) -> None:
    asking = asyncio.Event()

    async def ask(_: UserQuestion) -> UserAnswer:
        asking.set()
        await asyncio.sleep(60)
        raise AssertionError

    async with modern(journal) as connections:
        context = msgspec.structs.replace(call_of(), ask=ask)
        task = asyncio.create_task(responses(connections, context, rounds=[{"a": FORM}]))
        async with asyncio.timeout(20):
            await asking.wait()
            task.cancel()
            await asyncio.wait({task})
        assert task.cancelled()


@pytest.mark.parametrize("tool", ["need", "need_once"])
async def test_a_call_that_is_repeated_asks_the_person_once(journal: Path, tool: str) -> None:
    person = Person(UserAnswer(action="accept", content={"name": "Nexus"}), UserAnswer(action="decline"))
    async with over_http(journal, handshake=False) as http, connected(http.server(elicitation=True)) as connections:
        args: dict[str, Any] = {"rounds": [{"a": FORM}, {"a": FORM}], "hang": 1}
        running = asyncio.create_task(use(connections, f"peculiar__{tool}", call_of(person), **args))
        await eventually(lambda: bool(calls(journal, tool, "hangs")), connections)
        assert len(person.asked) == 1
        # The server passes a check during the call, which says nothing about it after the failure.
        await use(connections, "peculiar__grow")
        await eventually(lambda: "peculiar__grown_0" in connections.tools(), connections)
        http.kill()
        http.start()
        if tool == "need_once":
            with pytest.raises(ToolError) as unknown:
                await running
            assert unknown.value.code == "unknown"
            return
        answers = json.loads((await running).output)
    assert answers == [{"a": {"action": "accept", "content": {"name": "Nexus"}}}, {"a": {"action": "decline"}}]
    assert len(person.asked) == 2


async def test_changes_of_the_tools_are_seen_without_a_handshake(journal: Path) -> None:
    async with modern(journal) as connections:
        for number in range(3):
            name = f"peculiar__grown_{number}"
            assert name not in connections.tools()
            await use(connections, "peculiar__grow")
            async with asyncio.timeout(20):
                while name not in connections.tools():
                    await asyncio.sleep(0.02)


async def question_of(agent: Agent) -> dict[str, Any]:
    """The open question of the run's call."""
    async with asyncio.timeout(30):
        while True:
            found = await agent.thread.http.get(f"/api/runs/{agent.run_id}/approvals", headers=agent.thread.headers)
            pending = [one for one in found.raise_for_status().json()["items"] if one["state"] == "pending"]
            if pending:
                return dict(pending[0])
            await asyncio.sleep(0.03)


async def test_required_input_of_a_run_is_answered_like_an_approval(database_url: str, tmp_path: Path) -> None:
    async with with_peculiar(database_url, tmp_path, ELICITATION="yes", MODERN="yes") as (server, _):
        thread = await server.thread()
        await rules(thread, _all="allow")
        agent = await act(thread, f"/pace=0 {call('peculiar__need', rounds=[{'a': FORM}, {'b': FORM}])} /say Done.")
        question = await question_of(agent)
        assert question["args"]["question"] == "Which pylon?"
        decided = await agent.decide(
            question["toolCallId"], digest=question["digest"], approved=True, editedArgs={"name": "Nexus"}
        )
        assert decided.json()["state"] == "approved"
        question = await question_of(agent)
        assert (await agent.decide(question["toolCallId"], approved=False)).status_code == 200
        assert (await agent.ended())["status"] == "final"
        [card] = await agent.cards()
        assert json.loads(card["output"]) == [
            {"a": {"action": "accept", "content": {"name": "Nexus"}}}, {"b": {"action": "decline"}},
        ]  # fmt: skip
