"""A session of `khala plan` in a terminal, recorded: the command line reference shows exactly this text.

`KHALA_RECORD=1 pytest tests/integration/test_plan_recording.py` writes the text into the reference again.
"""

import os
import re
from pathlib import Path

import pytest

from tests.support.in_process import InProcessServer
from tests.support.server import ROOT
from tests.support.shared_server import server_fixture
from tests.support.terminal import LEAVE_SCREEN, on_terminal, result

pytestmark = pytest.mark.asyncio(loop_scope="module")

REFERENCE = ROOT / "docs" / "reference" / "cli.md"
BLOCK = re.compile(r"(?<=```text\n)\$ khala plan run album\.md\n.*?(?=```)", re.DOTALL)
CTRL_C = "\x03"
COLUMNS = 88
PLAN = """\
# Photo albums

- [ ] S1: Add the table

  /call complete_step {"summary": "The table album exists, with a migration."}

- [ ] S2: Add the routes (after: S1)

  /call complete_step {"summary": "GET and POST /albums answer."}

- [ ] S3: Add the page (after: S2)

  /text The page needs the list of albums first. /call list_directory {} /hanground=2 /then /call complete_step

- [ ] S4: Write the guide

  /call complete_step {"summary": "The guide shows how to make an album."}
"""
UNSTEADY = (
    (re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "01a20935-3d91-7768-896d-7450a0594b31"),
    (re.compile(r"\b\d+s\b"), "4s"),
    (re.compile(r"[\d,]+ tokens"), "1,204 tokens"),
)
"""What differs between two sessions, and the text that stands for it."""

server = server_fixture(KHALA_COOLDOWN_MS="0")


async def recorded(folder: Path, server: InProcessServer) -> str:
    """Run the session. Returns the commands, and what the terminal shows."""
    (folder / "album.md").write_text(PLAN)
    env = {"KHALA_URL": server.url, "XDG_STATE_HOME": str(folder / "state"), "HOME": str(folder), "NO_COLOR": "1"}
    shown = ["$ khala plan run album.md"]
    async with on_terminal(["plan", "run", "album.md"], env, folder, columns=COLUMNS, lines=20) as terminal:
        await terminal.wait_for("▶ S3 Add the page")
        await terminal.wait_for("> list_directory")
        await terminal.wait_for("  0 entries")
        shown += "\n".join(terminal.screen).rstrip().split("\n")
        terminal.type(CTRL_C)
        await terminal.wait_for("pausing: a person asked for it")
        await terminal.wait_for("Pausing after the steps under way.")
        shown += ["", "^C", *terminal.screen[2:5]]
        status, out, _ = await result(["plan", "pause", "--force"], env, folder)
        assert status == 0
        shown += ["", "$ khala plan pause --force    # in another terminal", *out.splitlines()]
        assert await terminal.exit_status() == 130
        shown += ["", *terminal.text_after(LEAVE_SCREEN)]
    for words in (["skip", "S3"], ["retry", "S9"]):
        _, out, errors = await result(["plan", *words], env, folder)
        shown += ["", f"$ khala plan {' '.join(words)}", *out.splitlines(), *errors.splitlines()]
    async with on_terminal(["plan", "resume"], env, folder, columns=COLUMNS, lines=20) as terminal:
        assert await terminal.exit_status() == 0
        shown += ["", "$ khala plan resume", *terminal.text_after(LEAVE_SCREEN)]
    text = "\n".join(line.rstrip() for line in shown)
    for pattern, steady in UNSTEADY:
        text = pattern.sub(steady, text)
    return f"{text}\n"


async def test_the_reference_shows_a_session_as_it_is(tmp_path: Path, server: InProcessServer) -> None:
    text = await recorded(tmp_path, server)
    reference = REFERENCE.read_text()
    if os.environ.get("KHALA_RECORD"):
        REFERENCE.write_text(BLOCK.sub(lambda _: text, reference, count=1))
        return
    [shown] = BLOCK.findall(reference)
    assert shown == text, "Record it again: KHALA_RECORD=1 pytest tests/integration/test_plan_recording.py"
