"""The clients that are React hooks: each one's page, in Chromium, beside a running server."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
from playwright.sync_api import BrowserContext, Locator, Page, Route, expect

from tests.support import node_packages
from tests.support.oidc.install import NODE
from tests.system.browser import new_browser, words

PATH = "/my-app"
HTML = (
    '<!doctype html><meta charset="utf-8"><title>My app</title>'
    "<script>window.khala = {settings}</script>"
    '<script type="module">{script}</script>'
)
PATIENCE_MS = 30_000
PAGE_LOAD_MS = 120_000
"""On a busy machine, a development build of a page of many modules loads for long."""
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
WEATHER = {
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
CITY = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "population": {"type": "integer"}},
    "required": ["name", "population"],
    "additionalProperties": False,
}
APPROVAL = '/call write_file {"path": "a.txt", "content": "one"} /then /call delete_file {"path": "a.txt"} /say Over.'


def bundle(source: Path) -> str:
    """The page's program as one script, bundled by the esbuild that is among its packages."""
    folder = node_packages.installed_packages(source.parent)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        copy = Path(temporary) / source.name
        copy.write_text(source.read_text())
        command = [
            str(NODE), "node_modules/esbuild/bin/esbuild", str(copy), "--bundle", "--format=esm", "--jsx=automatic",
            "--minify", '--define:process.env.NODE_ENV="production"', "--loader:.css=empty", "--log-level=error",
            f"--outfile={temporary}/bundle.js",
        ]  # fmt: skip
        env = {"PATH": os.pathsep.join((str(NODE.parent), os.environ.get("PATH", "")))}
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return (Path(temporary) / "bundle.js").read_text().replace("</script", "<\\/script")


class Chat:
    """The page of a client, with a new thread."""

    def __init__(self, context: BrowserContext, script: str, url: str, token: str, **options: Any) -> None:
        self.thread_id = str(uuid4())
        settings = {
            "threadId": self.thread_id, "options": options, "weather": WEATHER,
            "headers": {"Authorization": f"Bearer {token}"},
        }  # fmt: skip
        html = HTML.replace("{settings}", json.dumps(settings)).replace("{script}", script)
        self.page: Page = context.new_page()
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

        def serve(route: Route) -> None:
            route.fulfill(content_type="text/html", body=html)

        self.page.route(f"{url}{PATH}", serve)
        self.page.goto(f"{url}{PATH}")
        expect(self.page.locator("main[data-status=ready]")).to_be_visible()

    @property
    def answers(self) -> Locator:
        return self.page.locator("p.assistant")

    @property
    def last(self) -> Locator:
        return self.answers.last

    def send(self, text: str) -> None:
        self.page.get_by_label("Message").fill(text)
        self.page.get_by_role("button", name="Send").click()

    def expect_text(self, text: str) -> None:
        try:
            expect(self.last).to_contain_text(text)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.page.locator('main').inner_text()[:500]}\n{self.errors}") from error

    def expect_ready(self) -> None:
        expect(self.page.locator("main[data-status=ready]")).to_be_visible()

    def alert(self) -> str:
        alert = self.page.get_by_role("alert")
        expect(alert).to_be_visible()
        return alert.inner_text()


class Note(NamedTuple):
    """The note of a cell, and the words that the page shows."""

    note: str
    words: tuple[str, ...] = ()


class PageCells:
    """The cells of a page's row: one method for each feature."""

    def __init__(self, context: BrowserContext, script: str, env: Mapping[str, str]) -> None:
        self._context, self._script, self._env = context, script, env
        self._api = httpx.Client(
            base_url=f"{env['KHALA_URL']}/api", headers={"Authorization": f"Bearer {env['KHALA_TOKEN']}"}, timeout=30
        )
        self._provider_model = env["KHALA_PROVIDER_MODEL"]

    def _open(self, token: str = "KHALA_TOKEN", **options: Any) -> Chat:
        return Chat(self._context, self._script, self._env["KHALA_URL"], self._env[token], **options)

    def text(self) -> None:
        chat = self._open()
        chat.send("/echo En taro Adun")
        chat.expect_text("En taro Adun")
        chat.send("/echo And Tassadar")
        chat.expect_text("And Tassadar")
        assert chat.answers.count() == 2

    def stream(self) -> None:
        chat = self._open(model=self._provider_model)
        chat.send("/words=60 /pace=30")
        chat.expect_text("word5 ")
        assert "word60" not in chat.last.inner_text()
        chat.expect_text("word60")

    def tools(self) -> None:
        chat = self._open()
        chat.send('/call weather {"city": "Aiur"} /say It is fine.')
        chat.expect_text("It is fine.")
        assert chat.page.evaluate("window.called") == ["Aiur"]

    def forced(self) -> str:
        chat = self._open(toolChoice={"mode": "required", "tools": ["weather"]})
        chat.send("Hello")
        chat.page.wait_for_function("window.called.length > 0")
        return "With `toolChoice` in `options`."

    def structured(self) -> str:
        chat = self._open(responseFormat={"type": "json_schema", "schema": CITY, "strict": True})
        chat.send("Which is the largest city?")
        chat.expect_text("population")
        chat.expect_ready()
        assert set(json.loads(chat.last.inner_text())) == {"name", "population"}
        return "With `responseFormat` in `options`."

    def images(self) -> None:
        chat = self._open()
        chat.page.evaluate("url => void window.sendImage('Look.', url)", PIXEL)
        chat.expect_text("image/png")

    def usage(self) -> None:
        chat = self._open()
        chat.send("/words=7 /pace=0")
        expect(chat.last).to_have_attribute("data-tokens", "7")

    def cancel(self) -> str:
        chat = self._open()
        chat.send("/words=2000 /pace=50")
        chat.expect_text("word5 ")
        chat.page.get_by_role("button", name="Stop").click()
        chat.expect_ready()
        deadline = time.monotonic() + 15
        while self._messages(chat)[-1]["status"] != "canceled":
            assert time.monotonic() < deadline, "the answer is not canceled"
            time.sleep(0.1)
        return "By a POST to `…/stop`. The client's own stop only stops reading, and the answer continues."

    def resume(self) -> str:
        chat = self._open()
        chat.send("/words=120 /pace=30")
        chat.expect_text("word10 ")
        chat.page.reload()
        chat.expect_text("word120")
        assert chat.last.inner_text().split() == words(120).split()
        assert chat.answers.count() == 1
        return "A reload in the middle of an answer continues it."

    def approvals(self) -> None:
        chat = self._open(autopilot=True)
        chat.send(APPROVAL)
        chat.page.get_by_role("button", name="Approve").click()
        chat.expect_text("Over.")
        assert not chat.page.get_by_role("alert").count()

    def errors(self) -> Note:
        found: list[str] = []
        for chat in (self._open(model="gpt-none"), self._open("KHALA_SPENT_TOKEN"), self._open()):
            chat.send("/fail=3" if len(found) == 2 else "Hello")
            found.append(chat.alert())
        shown = "not offered" in found[0]
        return Note("" if shown else "Of a refused request the client shows only the status.", tuple(found))

    def _messages(self, chat: Chat) -> list[dict[str, Any]]:
        found = self._api.get("/threads", params={"limit": 20}).raise_for_status().json()["items"]
        assert chat.thread_id in [thread["id"] for thread in found]
        return list(self._api.get(f"/threads/{chat.thread_id}").raise_for_status().json()["messages"])


FEATURES = (
    "text", "stream", "tools", "forced", "structured", "images", "usage", "cancel", "resume", "approvals", "errors",
)  # fmt: skip


def cells(source: Path, env: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The results of a page, by feature."""
    script = bundle(source)
    with new_browser() as context:
        context.set_default_timeout(PATIENCE_MS)
        context.set_default_navigation_timeout(PAGE_LOAD_MS)
        expect.set_options(timeout=PATIENCE_MS)
        row = PageCells(context, script, env)
        return {feature: _result(feature, getattr(row, feature)) for feature in FEATURES}


def _result(feature: str, run: Callable[[], str | Note | None]) -> dict[str, Any]:
    try:
        found = run()
    except Exception:
        sys.stderr.write(f"{feature}:\n{traceback.format_exc()}\n")
        return {"state": "failed", "note": re.sub(r"\x1b\[\d+m", "", traceback.format_exc(limit=-3))}
    note = found if isinstance(found, Note) else Note(found or "")
    return {"state": "works"} | {name: value for name, value in note._asdict().items() if value}
