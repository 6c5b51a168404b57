"""`khala dev`: one command for a developer, which loads changed agents, and leaves nothing when it ends."""

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from khala.operations.home_notice import notices
from khala.settings import from_environment, process
from tests.support import server as support
from tests.support.client import NO_TLS
from tests.support.forked import Forked
from tests.support.guest import Guest
from tests.support.ports import free_port
from tests.support.server import Process, ended

pytestmark = pytest.mark.timeout(180)

AGENTS = '''
import asyncio
import time

from khala.sdk import AgentRunContext, agent, tool


@tool
def word() -> str:
    """Say the word."""
    return "WORD"


@agent("short", guests=True, tools=["word"], examples=["Say it."])
async def short(context: AgentRunContext) -> str:
    """Says the word."""
    return await context.call("word")


@agent("slow", guests=True)
async def slow(context: AgentRunContext) -> str:
    """Says the word in the beginning and in the end."""
    await context.text("WORD begins, ")
    await asyncio.sleep(3)
    return "WORD ends"


@agent("stuck", guests=True)
async def stuck(context: AgentRunContext) -> None:
    """Blocks a thread."""
    await context.step("block", time.sleep, 600)
'''
STOP_SECONDS = 5.0


class DevServer(Process):
    """`khala dev` in the folder of a project."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        env = {"PORT": str(self.port)}
        super().__init__(folder / "dev.log", env, "dev", "--seed")

    def start(self) -> None:
        """Start it, and wait until it has created the example threads."""
        self.log.write_text("")
        env = {name: value for name, value in self.env.items() if name not in {"DATABASE_URL", "KHALA_APP"}}
        self._process = Forked(("dev", "--seed"), env, self.folder, self.log, self.log)
        self.wait_for("example threads.")
        self.url = f"http://127.0.0.1:{self.port}"

    def found(self, pattern: str) -> str:
        """The first group of the pattern in the output."""
        match = re.search(pattern, self.log.read_text())
        assert match is not None, self.log.read_text()
        return match[1]

    def write(self, word: str, source: str = AGENTS) -> None:
        """Write the agents' module with this word, and wait until the change was noticed."""
        reports = ("changed. Loaded", "keeps running")
        before = sum(map(self.log.read_text().count, reports))
        (self.folder / "agents.py").write_text(source.replace("WORD", word))
        deadline = time.monotonic() + 20
        while sum(map(self.log.read_text().count, reports)) == before:
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def processes(self) -> list[str]:
        """The command lines of the processes that have the project's folder open or name it."""
        found = (_line_in(process, self.folder) for process in Path("/proc").iterdir() if process.name.isdecimal())
        return [line for line in found if line]


def _line_in(process: Path, folder: Path) -> str:
    try:
        line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        is_inside = (process / "cwd").readlink().is_relative_to(folder)
    except OSError:
        return ""
    return line if is_inside or str(folder) in line else ""


def asked(url: str, agent: str) -> str:
    """The agent's answer in a new thread."""
    guest = Guest(url)
    guest.send(agent)
    return guest.answer()


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """A project with agents, and `khala dev` in it."""
    folder = tmp_path_factory.mktemp("project").resolve()
    (folder / "agents.py").write_text(AGENTS.replace("WORD", "zero"))
    process = DevServer(folder)
    with ended(process):
        process.start()
        yield process


def test_a_changed_module_answers_the_next_message_and_a_running_run_finishes_as_it_began(dev: DevServer) -> None:
    assert "agents: app:short, app:slow, app:stuck; tools: word" in dev.log.read_text()
    dev.write("one")
    assert asked(dev.url, "app:short") == "one"
    running = Guest(dev.url)
    running.send("app:slow")
    running.wait_for("one begins")
    dev.write("two")
    assert asked(dev.url, "app:short") == "two"
    assert running.answer() == "one begins, one ends"
    agents = running.http.get("/agents").json()
    assert {one["name"] for one in agents["items"]} >= {"app:short", "app:slow"}


def test_an_error_in_a_module_is_shown_with_its_line_and_the_old_code_answers(dev: DevServer) -> None:
    dev.write("three")
    dev.write("four", "import time\nfrom khala.sdk import agent\nWORD +\n")
    assert "agents.py:3: SyntaxError: invalid syntax. The code from before keeps running." in dev.log.read_text()
    assert asked(dev.url, "app:short") == "three"
    dev.write("five", AGENTS.replace("def word()", "def read_file()").replace('["word"]', '["read_file"]'))
    assert "read_file is the name of a built-in tool" in dev.log.read_text()
    assert asked(dev.url, "app:short") == "three"
    dev.write("six")
    assert asked(dev.url, "app:short") == "six"


def test_webhooks_are_shown_in_the_terminal_and_on_the_page_of_the_developer_alone(dev: DevServer) -> None:
    asked(dev.url, "app:short")
    dev.wait_for("webhook  run.finished")
    page = dev.found(r"webhooks  (http://127\.0\.0\.1:\d+/\S+/)")
    shown = httpx.get(page, verify=NO_TLS)
    assert shown.status_code == 200
    assert "<h2>run.finished</h2>" in shown.text
    assert "signature is wrong" not in shown.text
    assert httpx.get(f"{page}rows", params={"after": 10**6}, verify=NO_TLS).text == ""
    origin = page.rsplit("/", 2)[0]
    assert httpx.get(f"{origin}/guessed/", verify=NO_TLS).status_code == 404
    assert httpx.get(page, headers={"Host": "evil.example"}, verify=NO_TLS).status_code == 421
    forged = httpx.post(f"{origin}/webhook", json={"type": "run.finished"}, verify=NO_TLS)
    assert (forged.status_code, forged.text) == (400, "The signature is wrong.")


def test_the_printed_links_and_token_make_the_developer_an_administrator(dev: DevServer) -> None:
    with httpx.Client(verify=NO_TLS) as browser:
        signed_in = browser.get(dev.found(r"console   (\S+)"))
        assert (signed_in.status_code, signed_in.headers["location"]) == (303, f"{dev.url}/console")
        assert browser.get(f"{dev.url}/api/me").json()["admin"] is True
        chat = browser.get(dev.found(r"chat      (\S+)"))
        assert (chat.status_code, chat.headers["location"]) == (303, f"{dev.url}/?signed-in")
    token = dev.found(r"the token (khala_\S+)")
    threads = httpx.get(f"{dev.url}/api/threads", headers={"Authorization": f"Bearer {token}"}, verify=NO_TLS).json()
    titles = {item["title"] for item in threads["items"]}
    assert {"A short question", "A long answer", "A tool call", "short"} <= titles


@pytest.mark.parametrize("command", ["dev", "serve"])
def test_a_port_in_use_is_named_with_the_option_to_choose_another(command: str, dev: DevServer, tmp_path: Path) -> None:
    done = in_folder(tmp_path, command, "--port", str(dev.port))
    assert (
        done == f"Error: Port {dev.port} of 127.0.0.1 is in use by another process. Choose another one with --port.\n"
    )


def test_a_host_that_is_not_of_this_machine_and_a_missing_key_are_named_in_one_line(tmp_path: Path) -> None:
    for host in ("203.0.113.1", "no-such-host.invalid"):
        done = in_folder(tmp_path, "serve", "--port", "0", HOST=host)
        assert done == f"Error: HOST must be an address of this machine, and not {host}.\n"
    without_key = {"KHALA_MODEL": "openai:gpt-5", "OPENAI_API_KEY": "", "OPENAI_BASE_URL": ""}
    done = in_folder(tmp_path, "serve", "--port", "0", **without_key)
    assert done.splitlines()[-1] == "Error: No key for openai models: set OPENAI_API_KEY."
    assert "Traceback" not in done


def test_it_refuses_other_machines_and_other_databases(tmp_path: Path) -> None:
    assert "listens only on this machine, and not on HOST=0.0.0.0" in in_folder(tmp_path, "dev", HOST="0.0.0.0")
    assert "DATABASE_URL= khala dev" in in_folder(tmp_path, "dev", DATABASE_URL="postgresql://db.example/khala")
    assert not (tmp_path / ".khala").exists()


def in_folder(folder: Path, *words: str, **env: str) -> str:
    """The errors of a command that fails in this folder."""
    errors = folder / "errors"
    errors.write_text("")
    given = {**support.process_environment(), "DATABASE_URL": "", **env}
    process = Forked(words, given, folder, folder / "out", errors)
    try:
        assert process.wait(60) == 1
    finally:
        process.send_signal(signal.SIGKILL)
    return errors.read_text()


def test_a_command_says_which_database_it_uses_and_that_the_server_has_another(
    dev: DevServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "default_home", lambda _=None: str(tmp_path / "share"))
    monkeypatch.chdir(dev.folder)
    chosen = "Set KHALA_HOME (or DATABASE_URL) as for your server to use its database."
    assert notices(from_environment({"PORT": str(dev.port)})) == [
        f"Database: a new and empty embedded Postgres in {tmp_path / 'share'}. {chosen}",
        "This folder has the database of `khala dev`: set KHALA_HOME=.khala to use it.",
        f"The Khala server at http://127.0.0.1:{dev.port} uses another database.",
    ]
    monkeypatch.setattr(process, "default_home", lambda _=None: str(dev.folder / ".khala"))
    used = notices(from_environment({"PORT": str(dev.port)}))
    assert used == [f"Database: the embedded Postgres in {dev.folder / '.khala'}, which a server uses now."]
    assert notices(from_environment({"KHALA_HOME": str(tmp_path)})) == []
    assert notices(from_environment({"DATABASE_URL": "postgresql://db.example/khala"})) == []
    assert not (tmp_path / "share").exists()


def test_ctrl_c_ends_everything_in_time_and_the_next_start_has_the_same_data(dev: DevServer) -> None:
    guest = Guest(dev.url)
    guest.send("app:stuck")
    dev.wait_for("webhook  run.started")
    began = time.monotonic()
    assert dev.kill(signal.SIGINT, within=30) == 0
    assert time.monotonic() - began < STOP_SECONDS + 1
    deadline = began + STOP_SECONDS + 5  # Postgres ends when its last user has.
    while (left := dev.processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
    dev.start()
    found = httpx.get(f"{dev.url}/api/threads/{guest.thread}", headers=guest.http.headers, verify=NO_TLS)
    assert [message["role"] for message in found.json()["messages"]][-2:] == ["user", "assistant"]
    ignored = subprocess.run(
        ["git", "-c", "init.defaultBranch=main", "init", "-q", "."], cwd=dev.folder, check=True, capture_output=True
    )
    assert ignored.returncode == 0
    status = subprocess.run(["git", "status", "--short"], cwd=dev.folder, check=True, capture_output=True, text=True)
    assert ".khala" not in status.stdout
