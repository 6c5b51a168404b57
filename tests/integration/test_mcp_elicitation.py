"""MCP servers may ask the person during their calls, if their configuration allows it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from khala.domain import ids
from khala.tools.call_clock import CallClock
from khala.tools.mcp import McpConnections
from khala.tools.mcp.active_calls import MAX_QUESTIONS
from khala.tools.port import AskUser, CallContext, UserAnswer, UserQuestion
from tests.support.agents import Agent, act, call, rules, with_peculiar
from tests.support.mcp_client import call_context, connected, over_http, stdio, use
from tests.support.mcp_server import PYLON

both = pytest.mark.parametrize("how", ["stdio", "http"])
URL = {"mode": "url", "message": "Sign in.", "url": "https://auth.example.com/x?y=1", "elicitationId": "e1"}


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@asynccontextmanager
async def server_over(how: str, journal: Path, **settings: Any) -> AsyncIterator[McpConnections]:
    given: dict[str, Any] = {"elicitation": True} | settings
    if how == "stdio":
        async with connected(stdio(journal, **given)) as connections:
            yield connections
        return
    async with over_http(journal) as http, connected(http.server(**given)) as connections:
        yield connections


def call_with(ask: AskUser | None) -> CallContext:
    return msgspec.structs.replace(call_context(ids.new().hex), ask=ask)


@both
async def test_a_servers_question_gets_the_answer_of_the_person(how: str, journal: Path) -> None:
    asked: list[UserQuestion] = []
    answers = [
        UserAnswer(action="accept", content={"name": "Nexus", "count": 2}),
        UserAnswer(action="decline"),
        UserAnswer(action="cancel"),
    ]

    async def ask(question: UserQuestion) -> UserAnswer:
        asked.append(question)
        return answers[len(asked) - 1]

    async with server_over(how, journal) as connections:
        result = await use(connections, "peculiar__question", call_with(ask), times=3)
        assert json.loads(result.output) == [
            {"action": "accept", "content": {"name": "Nexus", "count": 2}},
            {"action": "decline"},
            {"action": "cancel"},
        ]
        answers.append(UserAnswer(action="accept"))
        result = await use(connections, "peculiar__question", call_with(ask), params=URL)
        assert json.loads(result.output) == [{"action": "accept"}]
    form, page = asked[0], asked[-1]
    assert (form.source, form.message, form.url) == ("peculiar", "Which pylon?", None)
    assert form.schema == PYLON | {"additionalProperties": False}
    assert (page.message, page.url, page.schema) == ("Sign in.", URL["url"], None)


async def test_a_server_that_is_not_allowed_to_asks_nobody(journal: Path) -> None:
    async with server_over("stdio", journal, elicitation=False) as connections:
        assert "elicitation" not in (await use(connections, "peculiar__capabilities")).output
        assert "refused" in (await use(connections, "peculiar__question")).output


async def test_questions_that_cannot_be_shown_are_refused_with_a_reason(journal: Path) -> None:
    async def ask(_: UserQuestion) -> UserAnswer:
        return UserAnswer(action="cancel")

    def form(**properties: Any) -> dict[str, Any]:
        return {"requestedSchema": {"type": "object", "properties": properties}}

    async with server_over("stdio", journal) as connections:
        for params, reason in (
            ({"message": " "}, "1 to 2,000 characters"),
            ({"message": "a" * 2_001}, "1 to 2,000 characters"),
            (URL | {"url": "javascript:alert(1)"}, "one of HTTP"),
            (URL | {"url": "https://user@example.com/"}, "without credentials"),
            (URL | {"url": "https://example.com/" + "a" * 2_048}, "2048"),
            (form(a={"type": "object", "properties": {}}), "a field is"),
            (form(a={"type": "array", "items": {"type": "string"}}), "a list needs options"),
            (form(a={"type": "string", "format": "password"}), "the format must be"),
            (form(a={"type": "string", "enum": [1]}), "which are texts"),
            (form(a={"type": "string", "$ref": "#/x"}), "a field is"),
            (form(**{f"a{number}": {"type": "string"} for number in range(21)}), "at most 20 fields"),
            ({"requestedSchema": {"type": "object", "properties": {}, "required": ["x"]}}, "must name properties"),
        ):
            result = await use(connections, "peculiar__question", call_with(ask), params=params)
            assert result.output.startswith("refused: "), params
            assert reason in result.output, params
        assert "belongs to no run" in (await use(connections, "peculiar__question", call_with(None))).output
        many = await use(connections, "peculiar__question", call_with(ask), times=MAX_QUESTIONS + 1)
        assert "At most 10 questions" in many.output


async def test_the_time_of_a_call_stops_while_the_person_is_asked(journal: Path) -> None:
    left: list[float] = []

    async def ask(_: UserQuestion) -> UserAnswer:
        left.append(clock.seconds_left)
        while asyncio.get_running_loop().time() < began + 2.2:  # Longer than the call may take.
            await asyncio.sleep(0.05)
        left.append(clock.seconds_left)
        return UserAnswer(action="decline")

    async with server_over("stdio", journal, timeout=2) as connections:
        began, clock = asyncio.get_running_loop().time(), CallClock(2)
        given = msgspec.structs.replace(call_with(ask), clock=clock)
        task = asyncio.create_task(use(connections, "peculiar__question", given))
        assert await clock.wait(task)
        assert json.loads(task.result().output) == [{"action": "decline"}]
    assert left[0] == left[1] > 0
    assert clock.seconds_left < left[0]


async def question_of(agent: Agent) -> dict[str, Any]:
    """The open question of the run's call."""
    async with asyncio.timeout(30):
        while True:
            found = await agent.thread.http.get(f"/api/runs/{agent.run_id}/approvals", headers=agent.thread.headers)
            pending = [one for one in found.raise_for_status().json()["items"] if one["state"] == "pending"]
            cards = await agent.cards()
            if pending and cards and cards[0].get("digest") == pending[0]["digest"]:
                assert cards[0]["state"] == "running"
                assert cards[0]["expiresAt"]
                return dict(pending[0])
            await asyncio.sleep(0.03)


async def test_the_question_of_a_tool_is_answered_like_an_approval(database_url: str, tmp_path: Path) -> None:
    async with with_peculiar(database_url, tmp_path, ELICITATION="yes") as (server, _):
        thread = await server.thread()
        await rules(thread, _all="allow")
        agent = await act(thread, f"/pace=0 {call('peculiar__question', times=4)} /say Done.")

        question = await question_of(agent)
        assert question["args"]["question"] == "Which pylon?"
        assert question["args"]["server"] == "peculiar"
        assert question["args"]["schema"]["required"] == ["name"]
        assert question["mayEdit"]
        assert "Which pylon?" in (await agent.cards())[0]["reason"]
        decide = {"digest": question["digest"], "approved": True}
        wrong = await agent.decide(question["toolCallId"], **decide, editedArgs={"name": "", "secret": 1})
        assert wrong.status_code == 400
        stranger = await server.thread()
        path = f"/api/runs/{agent.run_id}/approvals/{question['toolCallId']}"
        assert (await server.http.post(path, json=decide, headers=stranger.headers)).status_code == 403
        right = await agent.decide(question["toolCallId"], **decide, editedArgs={"name": "Nexus"})
        assert right.json()["state"] == "approved"

        first = question
        for decision in ({"approved": False}, {"approved": False, "reason": "cancel"}, {"approved": True}):
            question = await question_of(agent)
            assert question["toolCallId"] != first["toolCallId"], "the same words again are another question"
            assert (await agent.decide(question["toolCallId"], **decision)).status_code == 200
        assert (await agent.ended())["status"] == "final"
        (card,) = await agent.cards()
        assert json.loads(card["output"]) == [
            {"action": "accept", "content": {"name": "Nexus"}},
            {"action": "decline"},
            {"action": "cancel"},
            {"action": "cancel"},  # an approval without the field that the form requires
        ]
        assert "digest" not in card

        waiting = await act(thread, f"/pace=0 {call('peculiar__question')} /say Done.")
        question = await question_of(waiting)
        await waiting.cancel()
        assert (await waiting.ended())["status"] == "canceled"
        assert (await waiting.decide(question["toolCallId"], approved=False)).status_code == 409
