"""`khala plan` against a running server: on a terminal, and without one."""

import asyncio
import contextlib
import json
import stat
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from khala.operations.plan_client import feed
from khala.operations.plan_client.api import ServerConnection, open_client
from khala.operations.plan_client.view_state import FeedFrame
from tests.support.forwarder import Forwarder
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture
from tests.support.terminal import LEAVE_SCREEN, on_terminal, result, without_terminal

pytestmark = pytest.mark.asyncio(loop_scope="module")

DONE = '/call complete_step {"summary": "done"}'
CTRL_C = "\x03"

server = server_fixture(KHALA_COOLDOWN_MS="0")


class Workplace:
    """A directory of a person with a plan in it, and an environment."""

    def __init__(self, folder: Path, server: InProcessServer) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        self.state = folder / "state"
        self.env = {"KHALA_URL": server.url, "XDG_STATE_HOME": str(self.state), "HOME": str(folder)}
        self._http = server.http

    def write(self, *steps: tuple[str, str], name: str = "plan.md") -> None:
        """Write a checklist with these ids and instructions."""
        items = "\n".join(f"- [ ] {step_id}: Do {step_id}\n\n  {text}\n" for step_id, text in steps)
        (self.folder / name).write_text(f"# Album\n\n{items}")

    async def khala(self, *words: str, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
        """Run `khala plan …` without a terminal."""
        return await result(["plan", *words], {**self.env, **(env or {})}, self.folder)

    @property
    def remembered(self) -> dict[str, Any]:
        """The newest plan in the file of this directory."""
        (path,) = (self.state / "khala" / "plans").glob("*.json")
        return dict(json.loads(path.read_text())["plans"][0])

    async def request(self, method: str, path: str, **body: Any) -> httpx.Response:
        """Ask the server about the plan."""
        known = self.remembered
        return await self._http.request(
            method,
            f"/api/plans/{known['planId']}{path}",
            headers={"X-Anon-Key": known["anonKey"]},
            json=body if method == "POST" else None,
        )

    async def plan(self) -> dict[str, Any]:
        """The plan as it is now."""
        return dict((await self.request("GET", "")).raise_for_status().json())

    async def wait(self, status: str) -> dict[str, Any]:
        """Wait for this status of the plan."""
        async with asyncio.timeout(20):
            while (plan := await self.plan())["status"] != status:
                await asyncio.sleep(0.02)
        return plan


@pytest.fixture
def place(tmp_path: Path, server: InProcessServer) -> Workplace:
    return Workplace(tmp_path, server)


async def test_without_a_terminal_each_event_is_a_line_and_completion_is_status_0(place: Workplace) -> None:
    place.write(("S1", DONE), ("S2", DONE))
    status, out, errors = await place.khala("run", "plan.md")
    assert (status, errors) == (0, "")
    lines = out.splitlines()
    assert [line.split()[1] for line in lines[:-1]] == [
        *("created", "started", "step_started", "step_completed", "step_started", "step_completed"),
        *("stopping", "stopped"),
    ]
    assert lines[3].split(maxsplit=2)[2] == "S1       try 1: done"
    assert "stopped   2 of 2 done  Album  (all steps are done)" in lines[-1]
    status, out, _ = await place.khala("status", "--json")
    assert status == 0
    assert [step["summary"] for step in json.loads(out)["steps"]] == ["done", "done"]


async def test_lines_of_json_have_the_events_and_then_the_plan(place: Workplace) -> None:
    place.write(("S1", DONE))
    status, out, _ = await place.khala("run", "plan.md", "--json")
    *events, plan = map(json.loads, out.splitlines())
    assert status == 0
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert plan["plan"]["status"] == "stopped"


async def test_a_plan_with_a_failed_step_is_status_1_and_is_continued_in_a_new_one(place: Workplace) -> None:
    place.write(("S1", DONE), ("S2", "/fail=1"))
    status, out, errors = await place.khala("run", "plan.md", "--mode", "autopilot", "--strategy", "abort")
    assert status == 1
    assert "step_failed" in out
    assert "khala plan export -o plan.md, then khala plan run plan.md" in errors
    assert (await place.khala("export", "-o", "plan.md"))[0] == 0
    text = (place.folder / "plan.md").read_text()
    (place.folder / "plan.md").write_text(text.replace("/fail=1", DONE))
    status, out, errors = await place.khala("run", "plan.md")
    assert (status, errors) == (0, "")
    assert [line.split()[1:3] for line in out.splitlines() if "step_started" in line] == [["step_started", "S2"]]


async def test_only_the_user_can_read_the_file_with_the_key_and_no_token_is_in_it(place: Workplace) -> None:
    place.write(("S1", DONE))
    await place.khala("run", "plan.md", "--detach")
    (path,) = (place.state / "khala" / "plans").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert set(place.remembered) == {"server", "planId", "threadId", "source", "anonKey"}
    assert [path.name for path in place.folder.iterdir()] == ["plan.md"]


async def test_a_paused_plan_is_status_3_and_is_resumed_on_request_only(place: Workplace) -> None:
    place.write(("S1", DONE), ("S2", DONE))
    status, out, errors = await place.khala("run", "plan.md", "--mode", "step")
    assert status == 3
    assert "the result of a step waits for a review" in out
    assert "khala plan resume" in errors
    status, _, errors = await place.khala("run", "plan.md")
    assert status == 2
    assert "--resume" in errors
    first = place.remembered["planId"]
    status, out, _ = await place.khala("run", "plan.md", "--resume")
    assert place.remembered["planId"] == first
    assert (status, out.count("step_completed"), out.count("step_started       S1")) == (3, 1, 0)
    status, out, _ = await place.khala("resume")
    assert (status, out.count("step_started")) == (0, 0)


async def test_the_screen_shows_the_steps_and_ctrl_c_pauses_and_resume_is_offered(place: Workplace) -> None:
    place.write(("S1", DONE), ("S2", "/wait=1.5 " + DONE), ("S3", DONE))
    async with on_terminal(["plan", "run", "plan.md"], place.env, place.folder) as terminal:
        await terminal.wait_for("▶ S2 Do S2")
        assert "✓ S1 Do S1  done" in terminal.screen
        assert any("running  1 of 3 done  agent default" in line for line in terminal.screen)
        terminal.type(CTRL_C)
        await terminal.wait_for("Pausing after the steps under way")
        assert await terminal.exit_status() == 130
        after = terminal.text.rpartition(LEAVE_SCREEN)[2]
        assert "The plan is paused. Go on: khala plan resume" in after
        assert LEAVE_SCREEN in terminal.raw
    assert (await place.plan())["counts"] == {"open": 1, "running": 0, "completed": 2, "failed": 0, "skipped": 0} | {
        "cancelled": 0,
        "blocked": 0,
    }
    async with on_terminal(["plan", "run", "plan.md"], place.env, place.folder) as terminal:
        await terminal.wait_for("Resume it (r), begin a new plan (n), or quit (q)?")
        terminal.type("r\n")
        assert await terminal.exit_status() == 0
        assert "3 of 3 done" in terminal.text


async def test_two_interrupts_within_a_second_leave_the_view_at_once(place: Workplace) -> None:
    place.write(("S1", "/hang=1"))
    async with on_terminal(["plan", "run", "plan.md"], place.env, place.folder) as terminal:
        await terminal.wait_for("▶ S1 Do S1")
        terminal.type(CTRL_C)
        await terminal.wait_for("Pausing")
        started = time.monotonic()
        terminal.type(CTRL_C)
        assert await terminal.exit_status() == 130
        assert time.monotonic() - started < 5
        assert "The plan is pausing" in terminal.text
    assert (await place.plan())["status"] == "pausing"
    status, _, _ = await place.khala("pause", "--force")
    assert status == 0
    await place.wait("paused")


async def test_an_interrupt_without_a_terminal_pauses_too(place: Workplace) -> None:
    place.write(("S1", "/wait=1 " + DONE), ("S2", DONE))
    async with without_terminal(["plan", "run", "plan.md"], place.env, place.folder) as process:
        assert process.stdout is not None
        while b"step_started" not in await process.stdout.readline():
            pass
        process.send_signal(2)
        out, errors = await process.communicate()
        assert process.returncode == 130
        assert b"paused" in out
        assert b"Go on: khala plan resume" in errors


async def test_a_lost_connection_loses_and_repeats_no_line(place: Workplace, server: InProcessServer) -> None:
    place.write(*((f"S{number}", f"/wait=0.2 {DONE}") for number in range(6)))
    forwarder = Forwarder(urlsplit(server.url).port or 0)
    forwarder.up()
    try:
        env = {**place.env, "KHALA_URL": forwarder.url}
        async with without_terminal(["plan", "run", "plan.md", "--json"], env, place.folder) as process:
            assert process.stdout is not None
            lines = []
            async for line in process.stdout:
                lines.append(json.loads(line))
                if lines[-1]["type"] == "step_completed":
                    forwarder.down()
                    await asyncio.sleep(0.3)
                    forwarder.up()
            assert await process.wait() == 0
            assert process.stderr is not None
            assert b"The connection is lost" in await process.stderr.read()
    finally:
        forwarder.down()
    *events, plan = lines
    assert [event["seq"] for event in events] == list(range(1, plan["plan"]["eventSeq"] + 1))


async def test_a_resized_and_a_narrow_screen_show_no_line_that_is_too_wide(place: Workplace) -> None:
    place.write(("S1", "/hang=1"), ("S2", DONE))
    async with on_terminal(["plan", "run", "plan.md"], place.env, place.folder) as terminal:
        await terminal.wait_for("▶ S1 Do S1")
        terminal.resize(24, 8)
        async with asyncio.timeout(10):
            while not ("▶ S1 Do S1" in "\n".join(terminal.screen) and max(map(len, terminal.screen)) <= 24):
                await asyncio.sleep(0.02)
        assert len(terminal.screen) <= 8
        terminal.type(CTRL_C)
        await terminal.wait_for("Pausing")
        terminal.type(CTRL_C)
        assert await terminal.exit_status() == 130


async def test_colours_and_characters_are_those_of_the_terminal(place: Workplace) -> None:
    place.write(("S1", DONE.replace("done", "für alle")))
    env = {**place.env, "NO_COLOR": "1", "PYTHONIOENCODING": "ascii"}
    async with on_terminal(["plan", "run", "plan.md"], env, place.folder) as terminal:
        assert await terminal.exit_status() == 0
        await terminal.wait_for("+ S1 Do S1  f?r alle")
        assert "\x1b[3" not in terminal.raw
        assert terminal.raw.isascii()


async def test_edit_applies_the_difference_and_keeps_a_text_with_an_error(place: Workplace) -> None:
    place.write(("S1", DONE), ("S2", DONE))
    await place.khala("run", "plan.md", "--mode", "step")
    script = place.folder / "edit.py"
    script.write_text(
        "import sys, pathlib\n"
        "path = pathlib.Path(sys.argv[-1])\n"
        "text = path.read_text().replace('# Album', '# Photos').replace('Do S2', sys.argv[1])\n"
        "path.write_text(text + '- [ ] S3: Do S3 (after: ' + sys.argv[2] + ')\\n')\n"
    )
    status, _, errors = await place.khala("edit", env={"EDITOR": f"python3 {script} Make S9"})
    assert status == 1
    assert "depends on 'S9', which does not exist" in errors
    kept = Path(errors.rpartition("The text is in ")[2].strip().removesuffix("."))
    assert "after: S9" in kept.read_text()
    kept.unlink()
    status, out, _ = await place.khala("edit", env={"EDITOR": f"python3 {script} Make S1"})
    assert (status, "1 of 3 done  Photos" in out) == (0, True)
    _, out, _ = await place.khala("export")
    assert "- [x] S1: Do S1" in out
    assert "S2: Make" in out


async def test_an_edit_of_what_somebody_else_has_edited_is_refused_once_and_the_text_is_kept(place: Workplace) -> None:
    place.write(("S1", DONE), ("S2", DONE))
    await place.khala("run", "plan.md", "--mode", "step")
    known = place.remembered
    script = place.folder / "edit.py"
    script.write_text(
        "import json, pathlib, sys, urllib.request\n"
        f"body = json.dumps({{'add': [{{'id': 'S3', 'title': 'Theirs'}}]}}).encode()\n"
        f"headers = {{'X-Anon-Key': {known['anonKey']!r}, 'Content-Type': 'application/json'}}\n"
        f"url = {known['server'] + '/api/plans/' + known['planId'] + '/edit'!r}\n"
        "urllib.request.urlopen(urllib.request.Request(url, body, headers)).read()\n"
        "path = pathlib.Path(sys.argv[-1])\n"
        "path.write_text(path.read_text().replace('Do S2', 'Mine'))\n"
    )
    status, _, errors = await place.khala("edit", env={"EDITOR": f"python3 {script}"})
    assert (status, "Somebody else has edited the plan meanwhile" in errors) == (1, True), errors
    kept = Path(errors.rpartition("The text is in ")[2].strip().removesuffix("."))
    assert "Mine" in kept.read_text()
    kept.unlink()


async def test_commands_change_steps_and_the_plan(place: Workplace) -> None:
    place.write(("S1", DONE), ("S2", DONE), ("S3", DONE))
    await place.khala("run", "plan.md", "--mode", "step")
    assert (await place.khala("skip", "S2"))[0] == 0
    assert (await place.khala("cancel", "S3"))[0] == 0
    assert (await place.khala("retry", "S1"))[0] == 0
    status, _, errors = await place.khala("skip", "S9")
    assert (status, "no step 'S9'" in errors) == (1, True)
    counts = (await place.plan())["counts"]
    assert (counts["open"], counts["skipped"], counts["cancelled"]) == (1, 1, 1)
    assert (await place.khala("stop"))[0] == 0
    assert (await place.wait("stopped"))["reason"] == "interrupted"
    status, _, errors = await place.khala("edit", env={"EDITOR": "touch opened"})
    assert (status, "khala plan export -o plan.md" in errors) == (1, True)
    assert not (place.folder / "opened").exists(), "the editor is not opened for nothing"
    assert (await place.khala("list"))[1].count("Album") == 1


async def test_a_model_makes_a_plan_of_a_goal_and_a_person_starts_it(place: Workplace) -> None:
    made = {"title": "Made by a model", "steps": [{"id": "S1", "title": "Look"}, {"id": "S2", "title": "Write"}]}
    goal = f"/call plan_create {json.dumps(made)}"
    status, out, errors = await place.khala("run", "--goal", goal, "--mode", "step", "--max-iterations", "7")
    assert status == 3
    assert "- S1 Look" in out.replace("○", "-")
    assert "Start it: khala plan resume" in errors
    plan = await place.plan()
    assert (plan["status"], plan["mode"], plan["maxIterations"]) == ("idle", "step", 7)
    status, _, errors = await place.khala("run", "--goal", "/words=3")
    assert (status, "The model made no plan" in errors) == (1, True)


async def test_errors_say_what_to_do(place: Workplace) -> None:
    status, _, errors = await place.khala("status")
    assert (status, "khala plan run FILE" in errors) == (2, True)
    place.write(("S1", DONE))
    status, _, errors = await place.khala("run", "plan.md", "--server", "http://127.0.0.1:1")
    assert (status, "Start a server with `khala serve`" in errors) == (1, True)
    (place.folder / "bad.md").write_text("# Title\n\n- [ ] S1: One (after: S2)\n")
    status, _, errors = await place.khala("run", "bad.md")
    assert (status, "line 3" in errors) == (1, True)
    assert (await place.khala("run"))[0] == 2


async def test_a_frame_that_is_too_large_is_skipped_and_the_feed_goes_on_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def events(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        frame = {"type": "delta", "revision": 8} if request.query.get("after") == "7" else {"filler": "x" * 9_000}
        await response.write(f"data: {json.dumps(frame)}\n\n".encode())
        return response

    monkeypatch.setattr(feed, "MAX_FRAME_BYTES", 2_000)
    app = web.Application()
    app.router.add_get("/api/threads/{id}/events", events)
    async with TestServer(app) as fake, open_client(ServerConnection(server=str(fake.make_url("")))) as client:
        stream = feed.ThreadEventStream(client, uuid.uuid4(), 3)
        async with contextlib.aclosing(stream.items()) as items:
            assert await anext(items) == FeedFrame(type="skipped")
            stream.revision = 7
            assert isinstance(await anext(items), feed.Disconnected)
            assert await anext(items) == FeedFrame(type="delta", revision=8)
