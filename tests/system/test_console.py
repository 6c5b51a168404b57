"""The operators' console in a real browser, with runs of real sends."""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import httpx
import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.support import postgres
from tests.support.client import NO_TLS
from tests.support.oidc.provider import SECRET as SECRET_OF_CLIENT
from tests.support.oidc.provider import running
from tests.support.server import Server, command, ended
from tests.system.browser import BLOCKED, PASSWORD, another_browser, new_browser
from tests.system.conftest import SETTINGS
from tests.system.test_page_accessibility import AXE, RULES, STILL

pytestmark = pytest.mark.timeout(120)

ADMIN, USER = "artanis@example.com", "zeratul@example.com"
SECRET, TITLE = "The khaydarin crystal is hidden", "A secret place"
VIEWS = {
    "": "Overview",
    "runs": "Runs",
    "threads": "Threads",
    "schedules": "Schedules",
    "executors": "Executors",
    "tools": "Tools",
    "blobs": "Blobs",
    "spend": "Spend",
    "budgets": "Budgets",
    "accounts": "Accounts",
    "webhooks": "Webhooks",
    "audit": "Audit",
}
MANY_ACCOUNTS = "INSERT INTO users (id, name) SELECT gen_random_uuid(), 'Zealot ' || n FROM generate_series(1, 60) AS n"
OVERFLOW = """() => Math.max(...[document.documentElement, document.querySelector(".view")]
    .map((element) => element.scrollWidth - element.clientWidth))"""


class Receiver(BaseHTTPRequestHandler):
    """Takes webhooks, and remembers their ids."""

    ids: list[str]

    def do_POST(self) -> None:
        """Take one."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.ids.append(self.headers["webhook-id"])
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


class Account:
    """A person with an account, who uses the API."""

    def __init__(self, url: str, email: str, name: str) -> None:
        self.http = httpx.Client(base_url=url, headers={"Origin": url}, timeout=30, verify=NO_TLS)
        self.id = self.post("/api/auth/register", email=email, password=PASSWORD, name=name)["id"]

    def post(self, path: str, **body: Any) -> Any:
        """The response to a body."""
        return self.http.post(path, json=body).raise_for_status().json()

    def send(self, text: str, **options: Any) -> tuple[str, str]:
        """The ids of a new thread and of the run that answers this message in it."""
        thread = self.post("/api/threads")["thread"]["id"]
        return thread, self.post(f"/api/threads/{thread}/send", text=text, options=options)["runId"]

    def wait_for_run(self, run_id: str, *states: str) -> None:
        """Wait until the run has one of the states."""
        for _ in range(600):
            run = self.http.get(f"/api/runs/{run_id}").raise_for_status().json()
            if run["status"] in states:
                return
            threading.Event().wait(0.05)
        raise AssertionError(f"the run is {run['status']}")


class Console:
    """The console in one person's browser."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.url = f"{url}/console"
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._listen)

    def _listen(self, message: Any) -> None:
        if message.type in ("error", "warning") and message.text != BLOCKED and "401" not in message.text:
            self.complaints.append(message.text)

    def sign_in(self, email: str, password: str = PASSWORD) -> None:
        """Open the console without a session, and fill in the form."""
        self.page.goto(self.url)
        self.page.get_by_label("Email").fill(email)
        self.page.get_by_label("Password").fill(password)
        self.button("Sign in").click()

    def open(self, view: str, heading: str | None = None) -> None:
        """Open a view by its address. Without a heading it is that of one item, which has its id."""
        self.page.goto(f"{self.url}/{view}".removesuffix("/"))
        if heading is None:
            expect(self.item_id).to_have_text(view.rpartition("/")[2])
        else:
            expect(self.page.get_by_role("heading", level=1)).to_have_text(heading)
        self.wait()

    @property
    def item_id(self) -> Locator:
        """The id of the run, thread, account or webhook that is shown."""
        return self.page.locator(".item-id code")

    def wait(self) -> None:
        """Wait until all data of the view have been read."""
        expect(self.page.locator(".loading, .loaded[aria-busy=true]")).to_have_count(0)

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def confirm(self, verb: str, *, reason: str = "") -> None:
        """Carry out what the open dialog asks."""
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_label("Reason (optional)").fill(reason)
        dialog.get_by_role("button", name=verb, exact=True).click()
        expect(dialog).to_have_count(0)

    def newest_audit(self) -> Locator:
        """The newest entry of an operator's action."""
        self.open("audit", "Audit")
        self.button("Operators").click()
        expect(self.button("Operators")).to_have_attribute("aria-pressed", "true")
        self.wait()
        return self.page.locator("tbody tr").first

    def axe_violations(self) -> list[str]:
        self.page.evaluate(AXE.read_text())
        self.page.wait_for_function(STILL)
        script = """(tags) => axe.run(document, { runOnly: tags })
            .then(({ violations }) => violations.map(({ id, nodes }) => `${id}: ${nodes[0].html}`))"""
        found: list[str] = self.page.evaluate(script, RULES)
        return found


@pytest.fixture(scope="module")
def receiver() -> Iterator[ThreadingHTTPServer]:
    Receiver.ids = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def server(postgres_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with postgres.sync_database(postgres_url, template) as url:
        env = {"DATABASE_URL": url, "KHALA_FETCH_ALLOW": "127.0.0.0/8", **SETTINGS}
        server = Server(tmp_path_factory.mktemp("console") / "server.log", env)
        callback, home = f"{server.url}/api/auth/oidc/callback", f"{server.url}/"
        with running(callbacks=(callback,), signed_out=(home,)) as provider, ended(server):
            settings = {
                "ISSUER": provider.issuer,
                "CLIENT_ID": "khala",
                "CLIENT_SECRET": SECRET_OF_CLIENT,
                "NAME": "Example",
            }
            server.env |= {f"KHALA_OIDC_{name}": value for name, value in settings.items()}
            server.env["KHALA_ADMINS"] = "alice@example.org"
            server.start()
            yield server
        assert server.crashes() == []


@pytest.fixture(scope="module")
def user(server: Server) -> Account:
    return Account(server.url, USER, "Zeratul")


@pytest.fixture(scope="module")
def admin(server: Server) -> Account:
    account = Account(server.url, ADMIN, "Artanis")
    made = command(server.env, "accounts", "admin", ADMIN)
    assert made.returncode == 0, made.stdout
    return account


@pytest.fixture(scope="module")
def context(server: Server) -> Iterator[BrowserContext]:
    with new_browser() as context:
        yield context


@pytest.fixture(scope="module")
def signed_in(context: BrowserContext, server: Server, admin: Account) -> Console:
    console = Console(context, server.url)
    console.sign_in(ADMIN)
    expect(console.page.get_by_role("heading", level=1)).to_have_text("Overview")
    return console


@pytest.fixture
def console(signed_in: Console) -> Iterator[Console]:
    """The administrator's console. The test fails if the page has reported an error."""
    signed_in.page.set_viewport_size({"width": 1280, "height": 800})
    yield signed_in
    assert signed_in.complaints == []


def test_a_guest_is_asked_to_sign_in_and_a_user_is_refused_with_the_way_to_become_an_administrator(
    context: BrowserContext, server: Server, user: Account
) -> None:
    other = another_browser(context)
    console = Console(other, server.url)
    console.sign_in(USER, "wrong password")
    expect(console.page.get_by_role("alert")).to_contain_text("The email or password is incorrect.")
    console.page.get_by_label("Password").fill(PASSWORD)
    console.button("Sign in").click()
    expect(console.page.get_by_role("heading", level=1)).to_have_text("Your account is no administrator")
    expect(console.page.get_by_text(f"khala accounts admin {USER}")).to_be_visible()
    assert console.axe_violations() == []
    assert console.page.request.get(f"{server.url}/api/console/overview").status == 403
    console.button("Use another account").click()
    expect(console.page.get_by_role("heading", level=1)).to_have_text("Sign in to the console")
    assert console.page.request.get(f"{server.url}/api/console/overview").status == 401
    assert console.axe_violations() == []
    other.close()


def test_runs_are_found_by_state_and_search_and_one_is_shown_as_a_timeline(console: Console, user: Account) -> None:
    _, done = user.send('/call write_file {"path":"a.txt","content":"hi"} /say Done.', autopilot=True)
    _, failed = user.send("/fail=0")
    user.wait_for_run(done, "final")
    user.wait_for_run(failed, "error")
    page = console.page
    console.open("runs", "Runs")
    console.button("Failed").click()
    expect(page).to_have_url(re.compile(r"\?state=error$"))
    expect(page.get_by_role("link", name=f"…{failed[-8:]}")).to_be_visible()
    expect(page.get_by_role("link", name=f"…{done[-8:]}")).to_have_count(0)
    console.button("All").click()
    page.get_by_label("Search").fill(done)
    expect(page).to_have_url(re.compile(done))
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name=f"…{done[-8:]}").click()
    expect(console.item_id).to_have_text(done)
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile(r"^Default agent · \d"))
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    expect(page).to_have_title(re.compile(r"^Default agent · \d.* · Runs · Khala console$"))
    rows = page.locator(".gantt li")
    expect(rows.first).to_contain_text("In the queue")
    expect(rows.filter(has_text="write_file")).to_have_count(1)
    expect(rows.last).to_contain_text("Ended")
    call = rows.filter(has_text="demo").first
    call.get_by_role("button").press("Enter")
    expect(call).to_contain_text("Input tokens")
    page.go_back()
    expect(page.get_by_label("Search")).to_have_value(done)


def test_a_running_run_is_canceled_and_retried_and_both_are_audited(console: Console, user: Account) -> None:
    _, run = user.send("/words=5000 /pace=20")
    user.wait_for_run(run, "running")
    console.open(f"runs/{run}")
    console.button("Cancel run").click()
    console.page.keyboard.press("Escape")
    expect(console.button("Cancel run")).to_be_focused()
    console.button("Cancel run").click()
    console.confirm("Cancel run", reason="It writes for ever")
    user.wait_for_run(run, "canceled")
    expect(console.page.locator(".badge").first).to_have_text("Cancelled")
    entry = console.newest_audit()
    expect(entry).to_contain_text("Cancelled a run")
    expect(entry).to_contain_text("It writes for ever")
    expect(entry).to_contain_text("Artanis")
    console.open(f"runs/{run}")
    console.button("Retry run").click()
    console.confirm("Retry run")
    expect(console.item_id).not_to_have_text(run)
    again = console.item_id.inner_text()
    console.button("End run now").click()
    console.confirm("End run now")
    user.wait_for_run(again, "canceled")
    expect(console.newest_audit()).to_contain_text("Ended a run")


def test_a_running_run_is_requeued_and_goes_on_which_is_audited(console: Console, user: Account) -> None:
    _, run = user.send("/words=5000 /pace=20")
    user.wait_for_run(run, "running")
    console.open(f"runs/{run}")
    console.button("Requeue run").click()
    console.confirm("Requeue run", reason="It hangs")
    expect(console.page.get_by_text("Taken over by another executor")).to_be_visible()
    entry = console.newest_audit()
    expect(entry).to_contain_text("Requeued a run")
    expect(entry).to_contain_text("It hangs")
    assert user.http.get(f"/api/runs/{run}").json()["attempt"] == 2
    user.http.post(f"/api/runs/{run}/cancel").raise_for_status()


def test_an_administrator_signs_in_and_out_at_the_provider_and_the_chat_page_in_another_tab_follows(
    context: BrowserContext, server: Server
) -> None:
    other = another_browser(context)
    chat = other.new_page()
    chat.goto(server.url)
    expect(chat.get_by_role("button", name="Sign in", exact=True)).to_be_visible()
    console = Console(other, server.url)
    console.page.goto(f"{console.url}/runs")
    console.page.get_by_role("link", name="Sign in with Example").click()
    expect(console.page.get_by_role("heading", level=1)).to_have_text("Runs")
    expect(chat.get_by_title("Your account")).to_contain_text("Alice Example")
    assert console.complaints == []
    console.button("Sign out").click()
    console.button("Yes, sign me out").click()
    expect(console.page).to_have_url(re.compile(rf"^{re.escape(server.url)}/(t/.*)?$"))
    expect(chat.get_by_role("button", name="Sign in", exact=True)).to_be_visible()
    assert console.page.request.get(f"{server.url}/api/console/overview").status == 401
    other.close()


def test_a_thread_is_read_only_once_it_is_opened_which_is_audited_and_at_any_revision(
    console: Console, user: Account
) -> None:
    thread, run = user.send(f"{SECRET} /words=40 /pace=200")
    user.wait_for_run(run, "final")
    user.http.patch(f"/api/threads/{thread}", json={"title": TITLE}).raise_for_status()
    page = console.page
    console.open("threads", "Threads")
    page.get_by_label("Find a thread").fill(thread)
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name=f"…{thread[-8:]}").click()
    expect(console.button("Open thread")).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("^Thread of Zeratul · "))
    assert SECRET not in page.content()
    assert TITLE not in page.content()
    console.button("Open thread").click()
    expect(page.get_by_role("dialog")).to_contain_text("The audit log records")
    console.confirm("Open thread", reason="Ticket 7")
    expect(page.get_by_text(SECRET)).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_have_text(TITLE)
    expect(page.get_by_text("word40")).to_be_visible()
    expect(page.get_by_text("Final", exact=True)).to_have_count(0)
    assert console.axe_violations() == []
    slider = page.get_by_role("slider", name="Revision of the thread")
    slider.focus()
    slider.press("Home")
    expect(page.get_by_text(SECRET)).to_have_count(0)
    for _ in range(3):
        console.wait()
        if page.get_by_text(SECRET).count() == 1:
            break
        slider.press("ArrowRight")
    expect(page.get_by_text(SECRET)).to_be_visible()
    expect(page.get_by_text("word40")).to_have_count(0)
    console.button("Latest").click()
    expect(page.get_by_text("word40")).to_be_visible()
    entry = console.newest_audit()
    expect(entry).to_contain_text("Opened a thread")
    expect(entry).to_contain_text("Ticket 7")
    expect(entry).to_contain_text(f"…{thread[-8:]}")


def test_a_thread_is_forked_at_a_revision_into_one_of_the_operators_own(
    console: Console, user: Account, admin: Account
) -> None:
    thread, run = user.send("Where is it? /words=20 /pace=400")
    user.wait_for_run(run, "final")
    console.open(f"threads/{thread}")
    console.button("Open thread").click()
    console.confirm("Open thread")
    expect(console.page.get_by_text("word20")).to_be_visible()
    console.button("First").click()
    console.button("Forward").click(click_count=2)  # past the welcome message
    expect(console.page.get_by_text("Where is it?")).to_be_visible()
    expect(console.page.get_by_text("word20")).to_have_count(0)
    console.page.get_by_role("button", name="Fork at revision").click()
    console.confirm("Fork thread")
    expect(console.item_id).not_to_have_text(thread)
    forked = console.item_id.inner_text()
    messages = admin.http.get(f"/api/threads/{forked}").raise_for_status().json()["messages"]
    assert "Where is it?" in json.dumps(messages)
    assert "word20" not in json.dumps(messages), "the thread as it was at the revision"
    expect(console.newest_audit()).to_contain_text("Forked a thread")


def test_an_account_is_found_and_blocked_and_its_budget_changed_which_is_audited(
    console: Console, server: Server
) -> None:
    blocked = Account(server.url, f"karax-{uuid4().hex[:8]}@example.com", "Karax")
    page = console.page
    console.open("accounts", "Accounts")
    page.get_by_label("Find an account").fill("karax")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="Karax").click()
    console.button("Edit limits").click()
    page.get_by_label("Cost a day, in USD").fill("2.5")
    console.confirm("Save limits", reason="Trial")
    expect(page.get_by_text("$2.50 a day")).to_be_visible()
    console.button("Block account").click()
    console.confirm("Block account", reason="Spam")
    expect(console.button("Unblock account")).to_be_visible()
    assert blocked.http.get("/api/me").status_code == 401
    entry = console.newest_audit()
    expect(entry).to_contain_text("Blocked an account")
    expect(entry).to_contain_text("Spam")
    expect(page.locator("tbody tr").nth(1)).to_contain_text("Changed a budget")


def test_deliveries_of_a_webhook_are_shown_and_sent_again_which_is_audited(
    console: Console, user: Account, receiver: ThreadingHTTPServer
) -> None:
    address = f"http://127.0.0.1:{receiver.server_port}/hook"
    webhook = user.post("/api/webhooks", url=address, events=["run.finished"])["id"]
    _, run = user.send("/words=3")
    user.wait_for_run(run, "final")
    page = console.page
    console.open("webhooks", "Webhooks")
    page.locator(f'a[href$="{webhook}"]').click()
    expect(page.get_by_role("heading", level=1), "the webhook has a name").to_have_text("127.0.0.1")
    expect(page).to_have_title("127.0.0.1 · Webhooks · Khala console")
    expect(page.locator(".facts")).to_contain_text("Enabled")
    row = page.locator("tbody tr")
    expect(row).to_contain_text("run.finished")
    expect(row).to_contain_text("Delivered")
    assert len(Receiver.ids) == 1
    console.button("Replay events").click()
    console.confirm("Replay events")
    expect(page.get_by_text("1 event is sent again.")).to_be_visible()
    for _ in range(200):
        if len(Receiver.ids) == 2:
            break
        page.wait_for_timeout(50)
    assert Receiver.ids[0] == Receiver.ids[1]
    expect(console.newest_audit()).to_contain_text("Replayed a webhook")


def test_a_long_list_has_pages(console: Console, server: Server) -> None:
    execute(server.env["DATABASE_URL"], MANY_ACCOUNTS)
    console.open("accounts?q=Zealot", "Accounts")
    rows = console.page.locator("tbody tr")
    expect(rows).to_have_count(50)
    first = rows.first.inner_text()
    console.button("Next").click()
    expect(rows).to_have_count(10)
    expect(console.button("Next")).to_be_disabled()
    console.button("Previous").click()
    expect(rows.first).to_have_text(re.compile(re.escape(first.split("\n")[0])))


def test_a_webhook_that_fails_is_marked_on_the_overview_which_leads_to_it(console: Console, user: Account) -> None:
    webhook = user.post("/api/webhooks", url="http://127.0.0.1:9/hook", events=["run.finished"])["id"]
    _, run = user.send("/words=3")
    user.wait_for_run(run, "final")
    page = console.page
    console.open("", "Overview")
    tile = page.locator(".tile", has_text="Failing webhooks")
    expect(tile).to_have_attribute("data-tone-of", "bad")
    tile.click()
    expect(page).to_have_url(re.compile(r"/webhooks\?state=failing$"))
    page.locator(f'a[href$="{webhook}"]').click()
    expect(page.locator(".facts")).to_contain_text("Failing")
    user.http.delete(f"/api/webhooks/{webhook}").raise_for_status()


def test_a_run_takes_few_lines_on_a_phone(console: Console, user: Account) -> None:
    _, run = user.send("/words=3")
    user.wait_for_run(run, "final")
    page = console.page
    page.set_viewport_size({"width": 390, "height": 844})
    console.open(f"runs?q={run}", "Runs")
    entry = page.get_by_role("list", name="Runs").get_by_role("listitem")
    expect(entry).to_have_count(1)
    expect(entry).to_contain_text(f"…{run[-8:]}")
    box = entry.bounding_box()
    assert box is not None
    assert box["height"] < 100
    entry.get_by_role("link").first.click()
    expect(console.item_id).to_have_text(run)


def test_every_list_takes_few_lines_on_a_phone(console: Console, user: Account) -> None:
    thread, run = user.send("/words=3")
    user.wait_for_run(run, "final")
    page = console.page
    page.set_viewport_size({"width": 390, "height": 844})
    lists = {
        f"threads?q={thread}": ("Threads", "Zeratul"),
        "accounts?q=Zeratul": ("Accounts", USER),
        "audit": ("Audit log", ""),
        "executors": ("Executors", "heartbeat"),
    }
    for view, (name, text) in lists.items():
        console.open(view, "Audit" if view == "audit" else name)
        entry = page.get_by_role("list", name=name).get_by_role("listitem").first
        expect(entry).to_be_visible()
        box = entry.bounding_box()
        assert box is not None
        assert box["height"] < 140, view
        expect(page.get_by_role("table")).to_have_count(0)
        expect(entry).to_contain_text(text)
        assert page.evaluate(OVERFLOW) == 0, view


def test_the_id_of_a_run_is_copied(console: Console, user: Account) -> None:
    _, run = user.send("/words=3")
    user.wait_for_run(run, "final")
    console.page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=console.url)
    console.open(f"runs/{run}")
    console.button("Copy id").click()
    expect(console.page.get_by_text("The id is copied.")).to_be_visible()
    assert console.page.evaluate("navigator.clipboard.readText()") == run


def test_data_that_loads_or_fails_has_its_place(console: Console) -> None:
    page = console.page
    page.route("**/api/console/overview", lambda _: None)
    page.route("**/api/console/spend*", lambda route: route.abort())
    page.goto(console.url)
    expect(page.get_by_role("status").filter(has_text="Loading…").first).to_be_attached()
    spend = page.get_by_role("region", name="Spend by day")
    expect(spend.get_by_role("alert")).to_contain_text("The console cannot reach the server.")
    page.unroute("**/api/console/spend*")
    spend.get_by_role("button", name="Try again").click()
    expect(spend.get_by_role("alert")).to_have_count(0)
    console.complaints.clear()


def test_axe_finds_nothing_on_any_view_and_none_is_wider_than_a_phone(console: Console) -> None:
    page = console.page
    for number, (view, title) in enumerate(VIEWS.items()):
        page.emulate_media(color_scheme="light" if number % 2 else "dark", reduced_motion="reduce")
        page.set_viewport_size({"width": 1024, "height": 768})
        console.open(view, title)
        assert page.evaluate(OVERFLOW) == 0, view
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate(OVERFLOW) == 0, view
        assert console.axe_violations() == [], view


def test_views_are_reached_by_keyboard_also_on_a_phone(console: Console) -> None:
    page = console.page
    console.open("", "Overview")
    skip = page.get_by_role("link", name="Skip to content")
    skip.focus()
    expect(skip).to_be_in_viewport(ratio=1)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    page.set_viewport_size({"width": 390, "height": 844})
    menu = page.get_by_role("button", name="Show the list of views")
    menu.press("Enter")
    expect(page.get_by_role("navigation", name="Views")).to_be_visible()
    page.keyboard.press("Escape")
    expect(menu).to_be_focused()
    menu.press("Enter")
    page.get_by_role("link", name="Audit").press("Enter")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    expect(page).to_have_title("Audit · Khala console")
    expect(page.get_by_role("navigation", name="Views")).to_be_hidden()


def test_errors_and_unknown_addresses_are_shown_as_sentences(console: Console) -> None:
    console.page.goto(f"{console.url}/nothing")
    expect(console.page.get_by_text("There is no such page")).to_be_visible()
    console.page.goto(f"{console.url}/runs/{uuid4()}")
    expect(console.page.get_by_role("alert")).to_contain_text("This could not be loaded")
    assert all("404" in complaint for complaint in console.complaints)
    console.complaints.clear()


def execute(url: str, statement: str) -> None:
    """Carry out a statement in a thread of its own: the browser's loop runs in this one."""
    thread = threading.Thread(target=lambda: asyncio.run(postgres.execute(url, statement)))
    thread.start()
    thread.join()
