"""The official OpenAI client drives an agent with two MCP servers, while a browser shows the thread."""

import json
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from playwright.sync_api import BrowserContext, expect

from tests.support.delayed_server import delayed_server
from tests.support.server import ROOT, ended
from tests.support.server import Server as Process
from tests.system.browser import Chat

pytestmark = pytest.mark.timeout(180)

WISH = (
    '/call first__echo {"text":"one"} /call second__echo {"text":"two"} /then /call fetch_url {"url":"URL"} '
    '/call first__json {} /then /call second__echo {"text":"three"} /call first__fail {} '
    "/say All three rounds are done."
)


@pytest.fixture
def server(database_url: str, tmp_path: Path) -> Iterator[Process]:
    """Khala with two MCP servers, which it starts."""
    args = ["-m", "tests.support.mcp_server", "stdio", str(tmp_path / "journal")]
    mcp_server = {"command": sys.executable, "args": args, "cwd": str(ROOT), "readOnly": ["*"]}
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"first": mcp_server, "second": mcp_server}}))
    env = {"DATABASE_URL": database_url, "KHALA_MODEL": "demo", "KHALA_MCP_CONFIG": str(config)}
    env["KHALA_FETCH_ALLOW"] = "127.0.0.0/8"
    process = Process(tmp_path / "server.log", env)
    with ended(process):
        process.start()
        yield process
        assert not process.crashes()


def test_a_browser_watches_what_the_openai_client_drives(browser: BrowserContext, server: Process) -> None:
    chat = Chat(browser, server.url)
    chat.register("ada@example.com", "Ada")
    script = """async () => (await (await fetch('/api/tokens', {method: 'POST', body: JSON.stringify({name: 'client'}),
        headers: {'Content-Type': 'application/json'}})).json()).token"""
    client = openai.OpenAI(api_key=chat.page.evaluate(script), base_url=f"{server.url}/v1", max_retries=0)
    deltas: list[str] = []

    def drive(wish: str) -> None:
        done = client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": wish}], extra_headers={"x-autopilot": "true"}
        )
        deltas.append(done.choices[0].message.content or "")

    with delayed_server() as (url, go):
        driving = threading.Thread(target=drive, args=(WISH.replace("URL", url),))
        driving.start()
        try:
            chat.listed("/call first__echo").click()
            running = re.compile(r"^Opening 127\.0\.0\.1:\d+… [23] of 4 done\s*$")
            expect(chat.page.locator(".group-head")).to_have_text(running)
            assert driving.is_alive(), "the browser saw the first step while the client was waiting for the last"
            go.set()
            expect(chat.answer).to_contain_text("All three rounds are done.")
            did = r"Used “Echo” \(first\), used “Echo” \(second\) 2 times, opened [\d.:]+ and 1 more step 1 failed"
            expect(chat.answer).to_contain_text(re.compile(did))
        finally:
            go.set()
            driving.join(60)
    assert deltas == ["All three rounds are done."]
    assert chat.complaints == []
