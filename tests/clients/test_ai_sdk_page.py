"""The example of `docs/ai-sdk.md` in Chromium: `useChat` in React, with reloads, a killed server and an approval."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

from tests.support import node_packages
from tests.support.oidc.install import NODE
from tests.support.server import ROOT, Server, ended
from tests.system.browser import new_browser

pytestmark = pytest.mark.timeout(180)

PACKAGES = Path(__file__).parent / "ai-sdk"
EXAMPLE = re.compile(r'^```tsx title="chat.tsx"\n(?P<code>.*?)^```$', re.MULTILINE | re.DOTALL)
PATH = "/my-app"
PAGE = '<!doctype html><meta charset="utf-8"><title>My app</title><script type="module">{script}</script>'


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The example as one script, bundled by esbuild."""
    found = EXAMPLE.search((ROOT / "docs" / "ai-sdk.md").read_text())
    assert found
    folder = node_packages.installed_packages(PACKAGES)
    source = tmp_path_factory.mktemp("example") / "chat.tsx"
    source.write_text(found["code"])
    command = [
        str(NODE), "node_modules/esbuild/bin/esbuild", str(source), "--bundle", "--format=esm", "--jsx=automatic",
        "--minify", '--define:process.env.NODE_ENV="production"',
    ]  # fmt: skip
    env = {"NODE_PATH": str(folder / "node_modules"), "PATH": str(NODE.parent)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.replace("</script", "<\\/script")


@pytest.fixture
def server(database_url: str, tmp_path: Path) -> Iterator[Server]:
    """`khala serve` with a short lease, so that another executor soon takes over the run of a killed one."""
    env = {"DATABASE_URL": database_url, "KHALA_MODEL": "demo", "KHALA_LEASE_SECONDS": "2", "KHALA_GRACE_SECONDS": "1"}
    process = Server(tmp_path / "server.log", env)
    with ended(process):
        process.start()
        yield process


@pytest.fixture
def browser(server: Server) -> Iterator[BrowserContext]:
    with new_browser() as context:
        yield context


def opened(browser: BrowserContext, server: Server, script: str) -> Page:
    """The example's page, beside the server's API."""
    page = browser.new_page()

    def serve(route: Route) -> None:
        route.fulfill(content_type="text/html", body=PAGE.format(script=script))

    page.route(f"{server.url}{PATH}", serve)
    page.goto(f"{server.url}{PATH}")
    return page


def send(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_role("button", name="Send").click()


def test_an_answer_survives_reloads_and_a_killed_server_and_an_approval_continues_it(
    browser: BrowserContext, server: Server, script: str
) -> None:
    page = opened(browser, server, script)
    answers = page.locator("p.assistant")
    send(page, "/words=150 /pace=30")
    expect(answers).to_contain_text("word10 ")
    page.reload()
    expect(answers).to_contain_text("word40 ")
    server.restart()
    page.reload()
    expect(answers).to_contain_text("word150")
    expect(page.locator("main[data-status=ready]")).to_be_visible()
    assert answers.count() == 1, "no replay has doubled the message"
    assert answers.inner_text().split() == [f"word{number}" for number in range(1, 151)]
    send(
        page,
        '/call write_file {"path": "a.txt", "content": "one"} /then /call delete_file {"path": "a.txt"} /say Over.',
    )
    page.get_by_role("button", name="Approve tool-delete_file").click()
    expect(answers.last).to_contain_text("Over.")
    expect(answers.last).to_contain_text("tool-delete_file: output-available")
    assert answers.count() == 2
    page.reload()
    expect(answers.last).to_contain_text("Over.")
    assert page.get_by_role("alert").count() == 0
