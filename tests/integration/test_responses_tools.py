"""The server's tools in the Responses API: programs in the sandbox, tools of an MCP server, and their number."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from khala.store.postgres.database import Database
from tests.support import postgres
from tests.support.agents import call, done, with_peculiar
from tests.support.openai_api import Requester

pytestmark = pytest.mark.asyncio(loop_scope="module")

CODE: Any = {"type": "code_interpreter", "container": {"type": "auto"}}
MCP: Any = {"type": "mcp", "server_label": "peculiar", "require_approval": "never"}
PROGRAM = "print(6 * 7)"


class Setting(Requester):
    """A requester whose tools need no approval. `journal` is the MCP server's."""

    journal: Any


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def requester(
    postgres_url: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Setting]:
    folder = tmp_path_factory.mktemp("peculiar")
    async with (
        postgres.database(postgres_url, template) as url,
        with_peculiar(url, folder, KHALA_COOLDOWN_MS="0") as (inside, journal),
    ):
        db = Database(inside.database_url)
        made = await Setting.new(inside, db)
        assert isinstance(made, Setting)
        made.journal = journal
        await made.allow(_all="allow")
        yield made
        await db.close()


async def ask(requester: Requester, text: str, *tools: Any, **more: Any) -> Any:
    return await requester.client.responses.create(model="khala", input=text, tools=list(tools), **more)


async def test_a_program_runs_in_the_sandbox_and_is_an_item_with_its_output(requester: Setting) -> None:
    text = call("run_code", language="python", code=PROGRAM) + " /say It is 42."
    response = await ask(requester, text, CODE)
    program, message = response.output
    assert (program.type, program.status, program.code) == ("code_interpreter_call", "completed", PROGRAM)
    assert [output.logs.strip() for output in program.outputs] == ["42"]
    assert (message.content[0].text, response.status) == ("It is 42.", "completed")
    assert [tool.type for tool in response.tools] == ["code_interpreter"]
    # A client without state sends all items again.
    items = [{"role": "user", "content": text}, *(item.to_dict() for item in response.output)]
    again = await requester.client.responses.create(
        model="khala", input=[*items, {"role": "user", "content": "/echo And then?"}], store=False
    )
    assert again.output_text == "And then?"


async def test_a_program_streams_its_events(requester: Setting) -> None:
    text = call("run_code", language="python", code="raise SystemExit(3)") + " /say It failed."
    stream = await ask(requester, text, CODE, stream=True)
    events = [event async for event in stream]
    kinds = [event.type for event in events if "code_interpreter" in event.type]
    assert kinds == [
        f"response.code_interpreter_call{kind}"
        for kind in (".in_progress", "_code.delta", "_code.done", ".interpreting", ".completed")
    ]
    program = events[-1].response.output[0]
    assert (program.status, "exited 3" in program.outputs[0].logs) == ("failed", True)


async def test_tools_of_the_operators_mcp_server_are_called_and_are_items(requester: Setting) -> None:
    text = call("peculiar__echo", text="En taro Adun") + " " + call("peculiar__fail") + " /say Done."
    stream = await ask(requester, text, MCP, stream=True)
    events = [event async for event in stream]
    response = events[-1].response
    echoed, failed, message = response.output
    assert (echoed.type, echoed.server_label, echoed.name) == ("mcp_call", "peculiar", "echo")
    assert (echoed.output, echoed.arguments, echoed.error) == ("En taro Adun", '{"text":"En taro Adun"}', None)
    assert (failed.status, failed.output) == ("failed", None)
    assert "it went wrong" in failed.error.content[0]["text"]
    assert message.content[0].text == "Done."
    kinds = [event.type for event in events if "mcp" in event.type]
    assert sorted(kinds) == sorted(
        ["response.mcp_call.in_progress", "response.mcp_call_arguments.delta", "response.mcp_call_arguments.done"] * 2
        + ["response.mcp_call.completed", "response.mcp_call.failed"]
    )
    assert (await requester.client.responses.retrieve(response.id)).to_dict() == response.to_dict()


@pytest.mark.parametrize("edited", ["Adun", "x" * 20_000])
async def test_edited_arguments_are_shown_as_they_were_run(requester: Setting, edited: str) -> None:
    await requester.allow(_all="allow", peculiar__echo="ask", run_code="ask")
    program = f"print({edited!r}[:4])"
    text = call("peculiar__echo", text="Zerg") + " " + call("run_code", language="python", code="1") + " /say Done."
    try:
        started: Any = await ask(requester, text, MCP, CODE, background=True)
        approvals = f"/api/runs/{started.khala['runId']}/approvals"
        async with asyncio.timeout(30):
            while len(asked := (await requester.get(approvals))["items"]) < 2:
                await asyncio.sleep(0.03)
        arguments = {"peculiar__echo": {"text": edited}, "run_code": {"language": "python", "code": program}}
        for one in asked:
            body = {"approved": True, "editedArgs": arguments[one["tool"]]}
            path = f"{approvals}/{one['toolCallId']}"
            (await requester.inside.http.post(path, json=body, headers=requester.person.headers)).raise_for_status()
        events: list[Any] = [
            event async for event in await requester.client.responses.retrieve(started.id, stream=True)
        ]
    finally:
        await requester.allow(_all="allow")
    response = events[-1].response
    echoed, ran = response.output[:2]
    assert (json.loads(echoed.arguments), echoed.output[:4]) == ({"text": edited}, edited[:4])
    assert (ran.code, ran.outputs[0].logs.strip()) == (program, edited[:4])
    assert (echoed.khala, ran.khala) == ({"edited": True}, {"edited": True})
    ended = [event.item for event in events if event.type == "response.output_item.done"]
    assert sorted(ended, key=response.output.index) == response.output
    assert (await requester.client.responses.retrieve(started.id)).to_dict() == response.to_dict()
    conversation = f"conv_{response.khala['threadId'].replace('-', '')}"
    items = [item async for item in requester.client.conversations.items.list(conversation, order="asc")]
    assert [item.to_dict() for item in items[1:]] == [item.to_dict() for item in response.output]
    history: list[Any] = [
        {"role": "user", "content": text},
        *(item.to_dict() for item in response.output),
        {"role": "user", "content": "/echo And?"},
    ]
    again: Any = await requester.client.responses.create(model="khala", input=history, store=False)
    assert (again.output_text, again.khala["ignored"]) == ("And?", [])


async def test_only_the_allowed_tools_of_an_mcp_server_are_offered(requester: Setting) -> None:
    before = done(requester.journal, "deed")
    text = call("peculiar__deed", n=1) + " " + call("peculiar__echo", text="x") + " /say Done."
    response = await ask(requester, text, MCP | {"allowed_tools": ["echo"]})
    refused, echoed = [item for item in response.output if item.type == "mcp_call"]
    assert (refused.status, echoed.output) == ("failed", "x")
    assert done(requester.journal, "deed") == before
    with pytest.raises(openai.BadRequestError, match="no MCP server of this name"):
        await ask(requester, "x", MCP | {"server_label": "other"})


async def test_a_function_that_is_not_allowed_is_refused_and_not_handed_over(requester: Setting) -> None:
    look: Any = {"type": "function", "name": "look", "parameters": {}}
    listen: Any = look | {"name": "listen"}
    choice: Any = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "listen"}]}
    text = call("look", at="a") + " /say Dark."
    response = await ask(requester, text, look, listen, tool_choice=choice)
    assert [item.type for item in response.output if item.type == "function_call"] == []
    assert [item.status for item in response.output if item.type == "mcp_call"] == ["failed"]
    assert response.output_text == "Dark."
    again = await requester.client.responses.create(model="khala", input="/echo And?", previous_response_id=response.id)
    assert again.output_text == "And?"


async def test_a_response_makes_no_more_calls_than_it_may(requester: Setting) -> None:
    before = done(requester.journal, "echo")
    rounds = " /then ".join(call("peculiar__echo", text=str(number)) for number in range(3))
    response = await ask(requester, f"{rounds} /say Done.", MCP, max_tool_calls=2)
    outputs = [item.output for item in response.output if item.type == "mcp_call" and item.status == "completed"]
    assert (outputs, response.max_tool_calls, response.status) == (["0", "1"], 2, "completed")
    assert done(requester.journal, "echo") == before + 2
    whole = await ask(requester, f"{rounds} /say Done.", MCP, max_tool_calls=3)
    assert (whole.output_text, len(whole.output)) == ("Done.", 4)
    none = await ask(requester, f"{call('peculiar__echo', text='x')} /say Done.", MCP, max_tool_calls=0)
    assert [item for item in none.output if item.type == "mcp_call" and item.status == "completed"] == []
