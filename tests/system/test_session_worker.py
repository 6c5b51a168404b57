"""The session worker: a whole conversation over messages, used by a page other than Khala's."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.support.repository_host import ArchiveServer, archive_server_in_thread
from tests.support.server import Server, ended
from tests.system.browser import PATIENCE_MS, new_profile, words

pytestmark = pytest.mark.timeout(120)

WRITE = '/call write_file {"path":"a.txt","content":"x"}'
DELETE = '/call delete_file {"path":"a.txt"}'


class Session:
    """A session worker of a page, with its requests and its messages."""

    def __init__(self, page: Page) -> None:
        self.page = page
        page.evaluate(
            """() => {
                window.said = [];
                window.session = new Worker("/web/session.js");
                window.session.onmessage = ({ data }) => window.said.push(data);
            }"""
        )
        self._asked = 0

    def post(self, message: Any) -> None:
        """Post any message to the worker."""
        self.page.evaluate("(message) => window.session.postMessage(message)", message)

    def messages_of(self, kind: str) -> list[dict[str, Any]]:
        """All messages of this type from the worker."""
        found: list[dict[str, Any]] = self.page.evaluate(
            "(kind) => window.said.filter(({ type }) => type === kind)", kind
        )
        return found

    def wait_for(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Wait for the first message of the worker with this type and these fields."""
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while time.monotonic() < deadline:
            for message in self.messages_of(kind):
                if fields.items() <= message.items():
                    return message
            self.page.wait_for_timeout(20)
        raise AssertionError(f"no {kind} with {fields}: {self.page.evaluate('window.said')}")

    def start_request(self, kind: str, payload: Any = None) -> str:
        """Send a request without waiting; returns the request's id."""
        self._asked += 1
        name = f"request-{self._asked}"
        self.post({"id": name, "type": kind, **({} if payload is None else {"payload": payload})})
        return name

    def ask(self, kind: str, payload: Any = None) -> dict[str, Any]:
        """Send a request, and wait for the response."""
        return self.wait_for("response", id=self.start_request(kind, payload))

    def request(self, kind: str, payload: Any = None) -> dict[str, Any]:
        """Send a request that must succeed; returns its data."""
        response = self.ask(kind, payload)
        assert response["success"], response
        return dict(response["data"])

    def request_error(self, kind: str, payload: Any = None) -> str:
        """Send a request that must fail; returns the error code."""
        response = self.ask(kind, payload)
        assert not response["success"], response
        return str(response["error"]["code"])

    def chat(self, text: str, **options: Any) -> dict[str, Any]:
        """Send a chat message, and wait for the answer."""
        return self.request("chat", {"text": text, "options": options} if options else {"text": text})


@pytest.fixture
def session(browser: BrowserContext, server: Server) -> Session:
    page = browser.new_page()
    page.goto(f"{server.url}/api/health/live")  # an empty page of the same origin
    return Session(page)


@pytest.fixture
def begun(session: Session) -> Session:
    session.request("init", {})
    return session


def test_a1_the_worker_reports_ready_once_with_the_number_of_tools(session: Session, server: Server) -> None:
    opened = session.request("init", {})
    tools = session.page.request.get(f"{server.url}/api/tools").json()["items"]
    ready = session.messages_of("ready")
    assert len(ready) == 1
    assert ready[0]["threadId"] == opened["threadId"]
    assert ready[0]["tools"] == len([tool for tool in tools if tool["action"] != "deny"])
    assert session.request_error("init", {}) == "conflict"
    assert len(session.messages_of("ready")) == 1


MALFORMED: tuple[tuple[Any, str, str | None], ...] = (
    ({"id": "a", "type": "dance"}, "unknown_type", "a"),
    ({"id": "b"}, "unknown_type", "b"),
    ({"id": "c", "type": "chat", "payload": 7}, "invalid_input", "c"),
    ({"id": "d", "type": "chat", "payload": {"text": 7}}, "invalid_input", "d"),
    ({"id": 7, "type": "chat", "payload": {"text": "x"}}, "invalid_input", None),
    ({"id": "e" * 65, "type": "chat", "payload": {"text": "x"}}, "invalid_input", None),
    ("chat", "invalid_input", None),
    (None, "invalid_input", None),
)
"""What it may be told, with the code of its answer and the id that it answers to."""


def test_a2_every_message_gets_a_response(begun: Session) -> None:
    before = len(begun.messages_of("response"))
    for at, (message, code, answered) in enumerate(MALFORMED, before):
        begun.post(message)
        begun.page.wait_for_function(
            "(at) => window.said.filter(({ type }) => type === 'response').length > at", arg=at
        )
        response = begun.messages_of("response")[at]
        assert (response["success"], response.get("id"), response["error"]["code"]) == (False, answered, code)
        assert response["error"]["message"]


def test_a3_a_chat_sends_steps_with_usage_on_the_last_one_and_then_the_response(begun: Session) -> None:
    data = begun.chat("/words=200 /pace=200")
    steps = begun.messages_of("step")
    assert [step["done"] for step in steps] == [False] * (len(steps) - 1) + [True]
    assert "".join(step.get("text", "") for step in steps[:-1]) == data["text"] == words(200)
    assert len(steps) > 2
    assert steps[-1]["usage"]["outputTokens"] > 0
    kinds = begun.page.evaluate("window.said.map(({ type }) => type)")
    assert kinds[-2:] == ["step", "response"]


def test_a4_a_chat_continues_its_history_through_several_steps_with_tools(begun: Session, server: Server) -> None:
    begun.chat("/words=5")
    data = begun.chat(f"{WRITE} /then /call todo_list {{}} /say Done.", autopilot=True)
    assert data["text"].endswith("Done.")
    assert {step["tool"]["step"] for step in begun.messages_of("step") if "tool" in step} == {1, 2}
    opened = begun.messages_of("response")[0]["data"]
    headers = {"X-Anon-Key": opened["anonKey"]}
    stored = begun.page.request.get(f"{server.url}/api/threads/{opened['threadId']}", headers=headers).json()
    messages = stored["messages"]
    assert [message.get("parentId") for message in messages[1:]] == [message["id"] for message in messages[:-1]]


@pytest.mark.parametrize("approved", [True, False])
def test_a5_a_call_that_needs_approval_waits_and_is_decided_once(begun: Session, *, approved: bool) -> None:
    request_id = begun.start_request(
        "chat", {"text": f"{WRITE} /then {DELETE} /say Over.", "options": {"autopilot": True}}
    )
    pending = begun.wait_for("tool_pending")
    assert (pending["tool"], pending["args"]) == ("delete_file", {"path": "a.txt"})
    begun.request("approve_tool", {"toolId": pending["toolId"], "approved": approved})
    assert begun.wait_for("response", id=request_id)["success"]
    assert len(begun.messages_of("tool_pending")) == 1
    assert (
        begun.request_error("approve_tool", {"toolId": pending["toolId"], "approved": not approved})
        == "already_decided"
    )


@pytest.fixture
def host() -> Iterator[ArchiveServer]:
    with archive_server_in_thread() as serving:
        yield serving


@pytest.fixture
def member(database_url: str, tmp_path: Path, host: ArchiveServer, chromium: Browser) -> Iterator[Session]:
    """A session of a signed-in person, at a server that may load from the host of repositories."""
    env = {
        "DATABASE_URL": database_url, "KHALA_MODEL": "demo", "KHALA_FETCH_ALLOW": "127.0.0.0/8,::1",
        "KHALA_REPOSITORY_HOSTS": f"github={host.origin}",
    }  # fmt: skip
    server = Server(tmp_path / "server.log", env)
    with ended(server):
        server.start()
        with new_profile(chromium) as context:
            page = context.new_page()
            page.goto(f"{server.url}/api/health/live")
            status = page.evaluate(
                """async () => (await fetch("/api/auth/register", {
                    method: "POST", headers: { "Content-Type": "application/json" },
                    body: JSON.stringify({ email: "ada@example.com", password: "en taro adun" }),
                })).status"""
            )
            assert status < 300, status
            session = Session(page)
            session.request("init", {})
            yield session


def test_a9_repositories_and_files_are_loaded_with_progress_and_failures_are_reported(
    member: Session, host: ArchiveServer
) -> None:
    loaded = member.request("load_repo", {"url": host.url()})
    assert (loaded["files"], loaded["repository"]["folder"]) == (2, "repositories/owner/repo")
    assert loaded["repository"]["skipped"][0]["reason"] == "binary"
    progress = member.messages_of("progress")
    assert (progress[0]["stage"], progress[0]["done"], progress[-1]["done"], progress[-1]["total"]) == (
        "downloading", 0, 2, 2,
    )  # fmt: skip
    member.chat('/call grep {"pattern":"Adun"}')
    outputs = [str(step["tool"].get("output")) for step in member.messages_of("step") if "tool" in step]
    assert any("src/main.py:1:print('Adun')" in output for output in outputs), outputs
    for name, code, sentence in (
        ("missing", "not_found", "has no repository owner/missing"),
        ("private", "private", "is private or requires a login"),
        ("limited", "rate_limited", "Try again in 77 seconds."),
        ("page", "not_an_archive", "answered with a web page"),
    ):
        error = member.ask("load_repo", {"url": host.url(name)})["error"]
        assert (error["code"], sentence in error["message"]) == (code, True), error
        assert error.get("retryAfterSeconds") == (77 if name == "limited" else None)
    assert member.request_error("load_repo", {"url": "https://evil.example/x/y"}) == "forbidden"


def test_a9_files_of_a_page_are_loaded_and_an_address_needs_an_account(begun: Session) -> None:
    files = [{"path": "src/a.py", "content": "print(1)"}, {"path": "b.md", "content": "# B"}]
    begun.request("load_repo", {"files": files})
    fractions = [(progress["done"], progress["total"]) for progress in begun.messages_of("progress")]
    assert fractions[0] == (0, 2)
    assert fractions[-1] == (2, 2)
    assert "repository" in begun.chat("What is there?")["text"]
    assert begun.request_error("load_repo", {"url": "https://github.com/x/y"}) == "unauthorized"
    assert begun.request_error("load_repo", {"files": [{"path": "", "content": "?"}]}) == "invalid_input"


def test_a13_a_generated_component_is_sent_to_the_page(begun: Session) -> None:
    function = {"name": "preview_component", "parameters": {}}
    begun.chat('/call preview_component {"html":"<p>hi</p>"}', functions=[function])
    assert begun.messages_of("preview_component")[0]["html"] == "<p>hi</p>"


def test_a_canceled_chat_keeps_its_text_and_a_failed_one_has_the_reason(begun: Session) -> None:
    request_id = begun.start_request("chat", {"text": "/words=2000 /pace=50"})
    begun.wait_for("step")
    begun.request("cancel")
    data = begun.wait_for("response", id=request_id)["data"]
    assert data["finish"]["reason"] == "canceled"
    assert words(2000).startswith(data["text"])
    assert begun.request_error("chat", {"text": '/call glob {"pattern":"*"} /failround=1'}) == "connection_lost"


def test_a_server_killed_in_mid_answer_loses_no_word(begun: Session, server: Server) -> None:
    request_id = begun.start_request("chat", {"text": "/words=200 /pace=60"})
    begun.wait_for("step")
    server.restart()
    data = begun.wait_for("response", id=request_id)["data"]
    steps = begun.messages_of("step")
    assert "".join(step.get("text", "") for step in steps if not step["done"]) == data["text"]
    assert [step["done"] for step in steps].count(True) == 1


def test_a_session_can_be_continued_with_its_key(begun: Session, browser: BrowserContext) -> None:
    first = begun.messages_of("ready")[0]["threadId"]
    key = begun.messages_of("response")[0]["data"]["anonKey"]
    begun.chat("/words=5")
    other = browser.new_page()
    other.goto(begun.page.url)
    again = Session(other)
    assert again.request_error("init", {"threadId": first}) == "forbidden"
    again.request("init", {"threadId": first, "anonKey": key})
    assert again.chat("/words=7")["text"] == words(7)
