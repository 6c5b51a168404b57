"""Tools of MCP servers: connections are restored, calls end, and servers do not affect each other."""

import asyncio
import json
import os
import signal
import ssl
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import psutil
import pytest

from khala.domain.tools import TOOL_NAME, ToolActor
from khala.tools.mcp import McpServerConfig, connection_events
from khala.tools.mcp.connection import MIN_CHECK_INTERVAL_SECONDS
from khala.tools.port import ToolError, ToolFile
from tests.support import everything
from tests.support.certificates import certificate
from tests.support.mcp_client import (
    ROOT,
    Collected,
    HttpMcpServer,
    call_context,
    connected,
    eventually,
    over_http,
    state,
    stdio,
    use,
)
from tests.support.mcp_server import PNG, calls
from tests.support.pages import pages
from tests.support.ports import free_port

SOON = 5.0
"""Seconds within which what is prompt has happened, on a busy machine."""


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@asynccontextmanager
async def server_over(
    how: str, journal: Path, **settings: Any
) -> AsyncIterator[tuple[McpServerConfig, HttpMcpServer | None]]:
    if how == "stdio":
        yield stdio(journal, **settings), None
        return
    async with over_http(journal) as http:
        yield http.server(**settings), http


both = pytest.mark.parametrize("how", ["stdio", "http"])


@both
async def test_tools_have_their_specs_and_results_keep_their_types(how: str, journal: Path) -> None:
    async with server_over(how, journal, timeout=7.0) as (server, _), connected(server) as connections:
        tools = connections.tools()
        assert (await use(connections, "peculiar__echo", text="En taro Adun")).output == "En taro Adun"
        spec = tools["peculiar__echo"].spec
        assert (spec.source, spec.timeout, spec.approval, spec.idempotent) == ("peculiar", 7.0, "allow", True)
        assert spec.permissions == {"network"}
        assert spec.parameters["required"] == ["text"]
        assert [tools[f"peculiar__{name}"].spec.approval for name in ("fail", "count")] == ["ask", "ask"]
        assert [tools[f"peculiar__{name}"].spec.idempotent for name in ("fail", "count")] == [False, True]
        risk = tools["peculiar__risk"].spec
        assert (risk.title, risk.destructive, spec.title, spec.destructive) == ("Take a risk", True, None, False)
        failed = await use(connections, "peculiar__fail")
        assert (failed.ok, failed.output, failed.code) == (False, "it went wrong", "failed")
        found = await use(connections, "peculiar__json")
        assert (found.output, found.media_type) == ({"a": 1}, "application/json")
        sink = Collected()
        image = await use(connections, "peculiar__image", call_context(sink=sink))
        assert (image.output, image.media_type, bytes(sink.content)) == (None, "image/png", PNG)
        mixed = await use(connections, "peculiar__mixed")
        assert mixed.content == ("look:", ToolFile(data=PNG, media_type="image/png"))
        assert mixed.summary == f"look:\n[image/png, {len(PNG)} bytes]"
        assert state(connections).tools == len(tools)


@both
async def test_large_results_go_to_the_sink_and_a_result_over_the_limit_fails_only_its_call(
    how: str, journal: Path
) -> None:
    async with server_over(how, journal) as (server, _), connected(server) as connections:
        sink = Collected()
        big = await use(connections, "peculiar__big", call_context(sink=sink), n=1_000_000)
        assert (big.output, len(sink.content)) == (None, 1_000_000)
        with pytest.raises(ToolError) as failed:
            await use(connections, "peculiar__huge")
        assert failed.value.code == "too_large"
        assert (await use(connections, "peculiar__echo", text="still here")).output == "still here"


@both
async def test_a_hundred_calls_at_once_each_get_their_own_answer(how: str, journal: Path) -> None:
    async with server_over(how, journal) as (server, _), connected(server) as connections:
        pending = [use(connections, "peculiar__echo", text=str(number)) for number in range(100)]
        assert [result.output for result in await asyncio.gather(*pending)] == [str(number) for number in range(100)]


@both
async def test_a_call_of_a_hanging_server_times_out_and_is_cancelled_there(how: str, journal: Path) -> None:
    async with server_over(how, journal, timeout=1.0) as (server, _), connected(server) as connections:
        with pytest.raises(ToolError) as failed:
            await use(connections, "peculiar__hang")
        assert failed.value.code == "timeout"
        await eventually(lambda: len(calls(journal, "hang", "cancelled")) == 1)
        assert (await use(connections, "peculiar__echo", text="still here")).output == "still here"
        assert state(connections).attempts == 0


@both
async def test_a_cancelled_call_is_cancelled_at_the_server(how: str, journal: Path) -> None:
    async with server_over(how, journal) as (server, _), connected(server) as connections:
        call = asyncio.create_task(use(connections, "peculiar__hang"))
        await eventually(lambda: len(calls(journal, "hang")) == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await eventually(lambda: len(calls(journal, "hang", "cancelled")) == 1)


@both
async def test_progress_is_reported_while_the_call_runs(how: str, journal: Path) -> None:
    async with server_over(how, journal) as (server, _), connected(server) as connections:
        progress: list[str] = []
        assert (await use(connections, "peculiar__slow", call_context(progress=progress))).output == "at last"
        assert progress == ["step 1", "step 2", "step 3"]


@both
async def test_new_tools_are_available_once_the_server_announces_them(how: str, journal: Path) -> None:
    async with server_over(how, journal) as (server, _), connected(server) as connections:
        assert "peculiar__grown_0" not in connections.tools()
        await use(connections, "peculiar__grow")
        await eventually(lambda: "peculiar__grown_0" in connections.tools(), seconds=SOON)


@both
async def test_a_call_of_a_killed_server_has_an_unknown_outcome_and_the_server_is_reconnected(
    how: str, journal: Path
) -> None:
    other = stdio(journal.with_name("other"), "other")
    async with server_over(how, journal) as (server, http), connected(server, other) as connections:
        elsewhere = asyncio.create_task(use(connections, "other__hang"))
        call = asyncio.create_task(use(connections, "peculiar__once", call_context("the key")))
        await eventually(lambda: len(calls(journal, "once")) == 1)
        began = time.monotonic()
        _kill(journal, "once")
        with pytest.raises(ToolError) as failed:
            await call
        assert (failed.value.code, time.monotonic() - began < SOON) == ("unknown", True)
        if http is not None:
            await eventually(lambda: state(connections).state == "failed")
            with pytest.raises(ToolError) as failed:
                await use(connections, "peculiar__echo", text="anybody?")
            assert failed.value.code == "unavailable"
            http.start()
        await eventually(lambda: state(connections).state == "ready")
        assert (await use(connections, "peculiar__echo", text="back")).output == "back"
        assert [recorded["key"] for recorded in calls(journal, "once")] == ["the key"], "the call is not repeated"
        assert (await use(connections, "other__echo", text="fine")).output == "fine"
        assert not elsewhere.done()
        elsewhere.cancel()
        await asyncio.wait({elsewhere})


@both
async def test_an_idempotent_call_is_repeated_once_under_its_key(how: str, journal: Path) -> None:
    async with server_over(how, journal) as (server, http), connected(server) as connections:
        call = asyncio.create_task(use(connections, "peculiar__count", call_context("the key"), n=1))
        await eventually(lambda: len(calls(journal, "count")) == 1)
        _kill(journal, "count")
        if http is not None:
            http.start()
        assert (await call).output == "counted 2"
        assert [recorded["key"] for recorded in calls(journal, "count")] == ["the key", "the key"]


@both
async def test_a_repeated_call_whose_server_dies_again_is_not_repeated_a_second_time(how: str, journal: Path) -> None:
    async with server_over(how, journal, idempotent=("once",)) as (server, http), connected(server) as connections:
        call = asyncio.create_task(use(connections, "peculiar__once", n=9))
        for times in (1, 2):
            await eventually(lambda times=times: len(calls(journal, "once")) == times)  # type: ignore[misc]
            _kill(journal, "once")
            if http is not None:
                http.start()
        with pytest.raises(ToolError) as failed:
            await call
        assert failed.value.code == "unknown"
        await eventually(lambda: state(connections).state == "ready")
        assert len(calls(journal, "once")) == 2


async def test_a_call_is_repeated_when_an_http_server_has_lost_the_session(journal: Path) -> None:
    async with over_http(journal) as http, connected(http.server()) as connections:
        http.kill()
        http.start()
        await http.wait_ready()
        # The server refuses the call before it starts: even a call that must not be repeated is resent, and runs once.
        await eventually(lambda: state(connections).state == "ready")
        assert (await use(connections, "peculiar__fail")).code == "failed"
        assert len(calls(journal, "fail")) == 1


async def test_a_server_that_never_starts_does_not_affect_the_others(journal: Path) -> None:
    silent = McpServerConfig(name="silent", command=sys.executable, args=("-c", "import time; time.sleep(60)"))
    missing = McpServerConfig(name="missing", command="no-such-program-anywhere")
    dying = McpServerConfig(name="dying", command=sys.executable, args=("-c", "raise SystemExit(3)"))
    deaf = McpServerConfig(name="deaf", url=f"http://127.0.0.1:{free_port()}/mcp?token=hush")
    good = stdio(journal)
    async with connected(silent, missing, dying, deaf, good, ready=False) as connections:
        await eventually(lambda: state(connections).state == "ready")
        await eventually(lambda: all(state(connections, name).error for name in ("missing", "dying", "deaf")))
        assert (await use(connections, "peculiar__echo", text="well")).output == "well"
        assert state(connections, "missing").error == "The program was not found."
        assert state(connections, "deaf").error == "The server does not respond at its address."
        assert state(connections, "silent").state == "connecting"
        assert {tool.spec.source for tool in connections.tools().values()} == {"peculiar"}
        assert "hush" not in str(connections.servers())


async def test_a_server_with_an_expired_certificate_is_refused_and_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = certificate(tmp_path, "localhost", days=-1)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(file)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    async with pages(tls) as serving:
        expired = McpServerConfig(name="expired", url=f"https://localhost:{serving.port}/mcp")
        async with connected(expired, ready=False) as connections:
            await eventually(lambda: bool(state(connections, "expired").error))
            error = state(connections, "expired").error
        assert (error, serving.requests) == (
            "The server's TLS certificate is not valid: certificate has expired.",
            [],
        )


async def test_tool_names_are_valid_for_every_provider(journal: Path) -> None:
    server, twin = stdio(journal, "Pe.culiar"), stdio(journal, "Pe_culiar")
    async with connected(server, twin) as connections:
        tools = connections.tools()
        assert all(TOOL_NAME.fullmatch(name) and tool.spec.name == name for name, tool in tools.items())
        assert {"Pe_culiar__echo", "Pe_culiar__a_b"} <= set(tools)
        named = [name.partition("__")[2] for name in tools if name.startswith("Pe_culiar__a_")]
        assert sorted(each[:4] for each in named) == ["a_b", "a_b_", "a_b_", "a_to"]
        assert len({tools[f"Pe_culiar__{name}"] for name in named}) == 4
        assert sum(name.endswith("__echo") for name in tools) == 2
        assert not any(name.endswith("__broken") for name in tools), "its schema is invalid"
        talkative = tools["Pe_culiar__talkative"].spec.description
        assert len(talkative) == 2000
        assert "\u202e" not in talkative


async def test_guests_are_offered_only_what_the_operator_opens_to_them(journal: Path) -> None:
    opened = stdio(journal, "opened", anonymous=True, read_only=("once",))
    async with connected(opened) as connections:
        specs = {name: tool.spec for name, tool in connections.tools().items()}
        assert all(not spec.permissions for spec in specs.values())
        assert (specs["opened__once"].approval, specs["opened__once"].idempotent) == ("allow", True)
        assert specs["opened__fail"].approval == "ask"


async def test_an_invalid_tool_does_not_affect_the_others() -> None:
    listed = [
        {"name": "good", "inputSchema": {"type": "object"}},
        {"name": "plain", "inputSchema": {}, "outputSchema": {"type": "array"}},
        {"name": "listed", "inputSchema": {"type": "array"}},
        {"name": "remote", "inputSchema": {"type": "object", "$ref": "https://example.com/schema.json"}},
        {"name": 42, "inputSchema": {"type": "object"}},
        {"name": "bare"}, None,
    ]  # fmt: skip
    program = (
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    said = {'protocolVersion': '2025-06-18', 'capabilities': {'tools': {}},\n"
        "            'serverInfo': {'name': 'odd', 'version': '1'}}\n"
        "    if asked['method'] == 'tools/list':\n"
        f"        said = {{'tools': json.loads({json.dumps(listed)!r})}}\n"
        "    if 'id' in asked:\n"
        "        print(json.dumps({'jsonrpc': '2.0', 'id': asked['id'], 'result': said}), flush=True)\n"
    )
    async with connected(McpServerConfig(name="odd", command=sys.executable, args=("-c", program))) as connections:
        assert set(connections.tools()) == {"odd__good", "odd__plain"}
        assert connections.tools()["odd__plain"].spec.parameters == {"type": "object"}


async def test_a_server_that_always_announces_changes_is_listed_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_events, "MAX_ANNOUNCEMENTS", 2)
    lists = tmp_path / "lists"
    program = (
        "import json, sys\n"
        "def send(**message): print(json.dumps({'jsonrpc': '2.0'} | message), flush=True)\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    said = {'protocolVersion': '2025-06-18', 'capabilities': {'tools': {'listChanged': True}},\n"
        "            'serverInfo': {'name': 'restless', 'version': '1'}}\n"
        "    if asked['method'] == 'tools/list':\n"
        "        said = {'tools': []}\n"
        f"        print('listed', file=open({str(lists)!r}, 'a'))\n"
        "    if 'id' in asked:\n"
        "        send(id=asked['id'], result=said)\n"
        "        for _ in range(100): send(method='notifications/tools/list_changed')\n"
    )
    async with connected(McpServerConfig(name="restless", command=sys.executable, args=("-c", program))):
        await eventually(lambda: len(lists.read_text().split()) == 3)
        await asyncio.sleep(4 * MIN_CHECK_INTERVAL_SECONDS)
        assert len(lists.read_text().split()) == 3, "one when it was connected, and one for each early announcement"


async def test_announcements_beyond_the_first_are_checked_later_and_other_requests_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_events, "ANNOUNCEMENT_SECONDS", 0.3)
    signal = connection_events.ConnectionSignal()
    async with asyncio.timeout(5):
        for _ in range(connection_events.MAX_ANNOUNCEMENTS):
            signal.request_limited_check()
            await signal.wait(60)
        for _ in range(2):
            began = time.monotonic()
            for _ in range(100):
                signal.request_limited_check()
            await signal.wait(60)
            assert time.monotonic() - began >= 0.25
        monkeypatch.setattr(connection_events, "ANNOUNCEMENT_SECONDS", 60)
        signal = connection_events.ConnectionSignal()
        for _ in range(connection_events.MAX_ANNOUNCEMENTS):
            signal.request_limited_check()
            await signal.wait(60)
        signal.request_limited_check()
        signal.request_check()
        await signal.wait(60)


async def test_a_program_gets_only_its_configured_environment(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "hush")
    async with connected(stdio(journal, env={"GIVEN": "yes"})) as connections:
        facts = json.loads((await use(connections, "peculiar__whoami")).output)
    assert set(facts["env"]) - {"LC_CTYPE"} == {"PATH", "HOME", "GIVEN"}
    assert facts["cwd"] == str(ROOT)


async def test_closing_ends_all_programs_and_their_children_within_five_seconds(journal: Path) -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(1)"
    unwilling = McpServerConfig(name="unwilling", command=sys.executable, args=("-c", stubborn))
    me = psutil.Process()
    earlier = me.children(recursive=True)  # The process from which other servers are forked stays.
    async with connected(stdio(journal), unwilling, ready=False) as connections:
        await eventually(lambda: state(connections).state == "ready")
        grandchild = int((await use(connections, "peculiar__spawn")).output)
        await eventually(
            lambda: any("SIG_IGN" in " ".join(process.cmdline()) for process in me.children(recursive=True))
        )
        tree = [
            process
            for process in me.children(recursive=True)
            if process not in earlier and ("mcp" in " ".join(process.cmdline()) or _is(process, stubborn))
        ]
        assert len(tree) >= 4
        began = time.monotonic()
    assert time.monotonic() - began < 5
    await eventually(lambda: not any(map(_alive, [*(each.pid for each in tree), grandchild])), tree, SOON)


async def test_programs_end_with_the_process_that_started_them(journal: Path) -> None:
    program = (
        "import asyncio, sys; from pathlib import Path\n"
        "from khala.telemetry import configure\n"
        "from tests.support.mcp_client import connected, stdio, use\n"
        "configure('text')\n"
        "async def main():\n"
        "    async with connected(stdio(Path(sys.argv[1]))) as connections:\n"
        "        print((await use(connections, 'peculiar__whoami')).output, flush=True)\n"
        "        print((await use(connections, 'peculiar__spawn')).output, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    pipe = asyncio.subprocess.PIPE
    holder = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(journal), cwd=ROOT, stdout=pipe)
    assert holder.stdout is not None
    async with asyncio.timeout(30):
        server_pid, grandchild = json.loads(await holder.stdout.readline()), int(await holder.stdout.readline())
    holder.kill()
    await holder.wait()
    await eventually(lambda: not any(map(_alive, (server_pid["pid"], server_pid["parent"], grandchild))), seconds=SOON)


async def test_the_reference_server_over_stdio() -> None:
    command, *args = everything.command("stdio")
    async with connected(McpServerConfig(name="everything", command=command, args=tuple(args))) as connections:
        await _reference(connections)


async def test_the_reference_server_over_http() -> None:
    port = free_port()
    env = {**os.environ, "PORT": str(port)}
    null = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *everything.command("streamableHttp"), env=env, stdout=null, stderr=null
    )
    try:
        async with connected(McpServerConfig(name="everything", url=f"http://127.0.0.1:{port}/mcp")) as connections:
            await _reference(connections)
    finally:
        process.kill()
        await process.wait()


async def _reference(connections: Any) -> None:
    progress: list[str] = []
    tools = connections.tools()
    assert (await use(connections, "everything__echo", message="hi")).output == "Echo: hi"
    assert (await use(connections, "everything__get-sum", a=2, b=40)).output.endswith("42.")
    done = await use(
        connections,
        "everything__trigger-long-running-operation",
        call_context(progress=progress),
        duration=0.3,
        steps=3,
    )
    assert (done.ok, len(progress)) == (True, 3)
    image = await use(connections, "everything__get-tiny-image")
    assert [item.media_type for item in image.content if isinstance(item, ToolFile)] == ["image/png"]
    structured = await use(connections, "everything__get-structured-content", location="Chicago")
    assert set(structured.output) == {"temperature", "conditions", "humidity"}
    wrong = await use(connections, "everything__get-sum", a="two")
    assert not wrong.ok
    assert all(TOOL_NAME.fullmatch(name) for name in tools)


def _kill(journal: Path, tool: str) -> None:
    os.kill(calls(journal, tool)[-1]["pid"], signal.SIGKILL)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _is(process: psutil.Process, code: str) -> bool:
    return code in process.cmdline()


@both
async def test_the_user_and_the_thread_are_named_only_to_servers_that_are_trusted_with_them(
    how: str, journal: Path
) -> None:
    user, thread = UUID(int=7), UUID(int=8)
    actors = [
        ToolActor(owner_id=user, user_id=user, thread_id=thread, run_id=UUID(int=9)),
        ToolActor(owner_id=thread, thread_id=thread),
        ToolActor(owner_id=user, user_id=user),
    ]
    for share, expected in (
        (True, [{"khala/user": str(user), "khala/thread": str(thread)}, {"khala/thread": str(thread)},
                {"khala/user": str(user)}]),
        (False, [{}, {}, {}]),
    ):  # fmt: skip
        journal.unlink(missing_ok=True)
        async with server_over(how, journal, share_identity=share) as (server, _), connected(server) as connections:
            for actor in actors:
                call = msgspec.structs.replace(call_context(), actor=actor)
                assert (await use(connections, "peculiar__echo", call, text="who?")).ok
            assert [one["identity"] for one in calls(journal, "echo")] == expected
