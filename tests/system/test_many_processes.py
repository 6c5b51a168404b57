"""Servers and workers on one Postgres behind nginx: all of them are interchangeable."""

import asyncio
import contextlib
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from khala.runs.executor import MAX_GUEST_SHARE
from tests.support import postgres
from tests.support.client import Observer, Thread, View
from tests.support.cluster import Cluster, cluster
from tests.support.frames import events
from tests.support.observed_run import assert_verified, numbered

CONCURRENCY = 4
SLOTS = int(CONCURRENCY * MAX_GUEST_SHARE)
"""Runs of guests that one worker takes at once, where that matters."""
WORDS = 40
LONGER = 120
"""Words of an answer that is to be under way when processes are restarted."""
MOST_TRIES = 100
"""Tries of one request, with a pause of 50 ms between them: a restart takes less."""


@pytest.fixture(scope="module")
def shared(postgres_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two servers and two workers, shared by the tests because their start takes most of the time."""
    folder = tmp_path_factory.mktemp("cluster")
    with (
        postgres.sync_database(postgres_url, template) as url,
        cluster(url, folder, KHALA_CONCURRENCY=str(CONCURRENCY)) as made,
    ):
        yield made
        assert_verified(made.workers[0].env)


@pytest.fixture
def khala(shared: Cluster) -> Iterator[Cluster]:
    """The cluster with all processes running; no process logs a crash.

    At the end, the stored answers are verified against their parts.
    """
    shared.start_missing()
    yield shared
    assert not shared.crashes()


@contextlib.asynccontextmanager
async def http_client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        yield http


async def test_observers_of_all_processes_see_the_same_text(khala: Cluster) -> None:
    async with http_client(khala.url) as http, contextlib.AsyncExitStack() as stack:
        thread = await Thread.create(http)
        urls = [khala.socket_url, khala.socket_url, *(web.socket_url for web in khala.webs)]
        following = [await stack.enter_async_context(Observer(url, thread).following()) for url in urls]
        for observer in following:
            await observer.until(lambda view: view.revision is not None)
        stream = await stack.enter_async_context(events(thread))
        assert (await stream.frame())["type"] == "snapshot"
        sent = await thread.send(f"/words={WORDS} /pace=40")
        answer = sent["assistantMessageId"]
        text = ""
        while numbered(WORDS) != text:
            text += "".join(part["data"].get("text", "") for part in (await stream.frame())["parts"])
            # nginx does not buffer the stream.
            assert text.count(" ") > WORDS / 2 or (await thread.run(sent["runId"]))["status"] != "final"
        for observer in following:
            await observer.until(lambda view: answer in view.finished)
        assert {observer.view.text(answer) for observer in following} == {numbered(WORDS)}
        late = await stack.enter_async_context(Observer(khala.socket_url, thread).following())
        await late.until(lambda view: view.text(answer) == numbered(WORDS))
    access_log = khala.front.access.read_text()
    assert all(f"127.0.0.1:{web.port}" in access_log for web in khala.webs)
    assert thread.key not in access_log


async def test_each_worker_adds_its_slots(khala: Cluster) -> None:
    async with http_client(khala.url) as http:
        threads = [await Thread.create(http) for _ in range(3 * SLOTS)]
        runs = [(thread, (await thread.send("/hang=1"))["runId"]) for thread in threads]
        await _until_running(runs, 2 * SLOTS)
        await asyncio.to_thread(khala.workers[1].kill, signal.SIGTERM)
        # Its runs are handed over, and wait for a free slot.
        await _until_running(runs, SLOTS)
        await asyncio.to_thread(khala.start_missing)
        await _until_running(runs, 2 * SLOTS)
        for thread, run_id in runs:
            await http.post(f"/api/runs/{run_id}/cancel", headers=thread.headers)
            await thread.ended(run_id)


async def _until_running(runs: list[tuple[Thread, str]], count: int) -> None:
    """Wait until so many runs are executed at once, and check that the number stays the same."""
    async with asyncio.timeout(30):
        steady = 0
        while steady < 5:
            states = [(await thread.run(run_id))["status"] for thread, run_id in runs]
            assert set(states) <= {"queued", "running"}
            assert states.count("running") <= 2 * SLOTS
            steady = steady + 1 if states.count("running") == count else 0
            await asyncio.sleep(0.05)


async def test_nginx_passes_the_largest_bodies_and_the_client_address(khala: Cluster) -> None:
    async with http_client(khala.url) as http:
        thread = await Thread.create(http)
        blobs = f"/api/threads/{thread.id}/blobs"
        taken = await http.post(blobs, content=b"a" * (2 << 20), headers=thread.headers)
        assert (taken.status_code, taken.json()["size"]) == (201, 2 << 20)
        for path, size in ((f"/api/threads/{thread.id}/send", (1 << 20) + 1), (blobs, (20 << 20) + 1)):
            refused = await http.post(path, content=b"a" * size, headers=thread.headers)
            assert (refused.status_code, refused.json()["code"]) == (413, "payload_too_large")
        for path in ("/api/chat", "/api/ag-ui"):
            passed_on = await http.post(path, json="a" * (2 << 20))
            assert (passed_on.status_code, passed_on.json()["code"]) == (400, "invalid_input"), path
        too_large = await http.post("/v1/chat/completions", content=b"a" * ((8 << 20) + 1))
        assert (too_large.status_code, too_large.json()["error"]["code"]) == (413, "payload_too_large")
        forged = {"X-Forwarded-For": "198.51.100.7", "X-Forwarded-Proto": "https"}
        account = {"email": f"{uuid.uuid4()}@example.com", "password": "en taro adun"}
        made = await http.post("/api/auth/register", json=account, headers=forged)
        assert made.status_code == 201
        assert "__Host-" not in made.headers["set-cookie"]
        (session,) = (await http.get("/api/me/sessions")).json()["items"]
        assert session["network"] == "127.0.0.0/24"


def _ended(answer: str, view: View) -> bool:
    return answer in view.finished


class RetryingClient:
    """A client that keeps sending through nginx, and retries as the protocol permits."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.sent: list[str] = []
        """The ids of the answers."""
        self.repeated = 0
        self.thread: Thread | None = None

    async def keep_sending(self, khala: Cluster, enough: asyncio.Event) -> None:
        """Send, wait for the end, compare the views of two observers with the stored thread, and send again."""
        body = {"id": str(uuid.uuid4()), "anonKey": uuid.uuid4().hex * 2}
        await self._asked("POST", "/api/threads", body)
        self.thread = Thread(self.http, body["id"], body["anonKey"])
        one, other = (Observer(khala.socket_url, self.thread) for _ in range(2))
        async with one.following(), other.following():
            while not enough.is_set():
                message = {"text": f"/words={LONGER} /pace=60", "messageId": str(uuid.uuid4())}
                sent = await self._asked("POST", f"/api/threads/{self.thread.id}/send", message)
                answer = sent["assistantMessageId"]
                self.sent.append(answer)
                for observer in (one, other):
                    await observer.until(partial(_ended, answer), within=60)
                    assert observer.view.text(answer) == numbered(LONGER)
                stored = await self._asked("GET", f"/api/runs/{sent['runId']}/parts?limit=1000")
                assert "".join(part["data"].get("text", "") for part in stored["items"]) == numbered(LONGER)
        answers = [message["id"] for message in one.view.messages.values() if message["role"] == "assistant"]
        assert len(answers) == len(self.sent) + 1, "the welcome, and one answer for each send"

    async def _asked(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """The response, retried on 503 and on connection errors, which are all that a client may see of a restart."""
        headers = self.thread.headers if self.thread else {}
        for _ in range(MOST_TRIES):
            with contextlib.suppress(httpx.TransportError):
                found = await self.http.request(method, path, json=body, headers=headers)
                if found.status_code != 503:
                    return dict(found.raise_for_status().json())
                assert found.json()["code"] == "unavailable", found.text
            self.repeated += 1
            await asyncio.sleep(0.05)
        raise AssertionError(f"{method} {path} had no answer")


@pytest.mark.timeout(300)
async def test_a_rolling_restart_under_load_loses_nothing(khala: Cluster) -> None:
    enough = asyncio.Event()
    async with http_client(khala.url) as http, asyncio.TaskGroup() as tasks:
        speakers = [RetryingClient(http) for _ in range(3)]
        for speaker in speakers:
            tasks.create_task(speaker.keep_sending(khala, enough))
        for process in khala.processes:
            await asyncio.to_thread(khala.restart, process)
            began = [len(speaker.sent) for speaker in speakers]
            async with asyncio.timeout(60):
                while any(len(speaker.sent) <= before for speaker, before in zip(speakers, began, strict=True)):
                    await asyncio.sleep(0.05)
        enough.set()
    print(f"{sum(speaker.repeated for speaker in speakers)} requests were repeated")


async def test_a_draining_process_is_not_ready_and_its_refused_requests_go_to_the_next_one(khala: Cluster) -> None:
    one, other = khala.webs
    one.kill(signal.SIGTERM)
    one.env["KHALA_DRAIN_SECONDS"] = "3"
    await asyncio.to_thread(khala.start_missing)
    async with http_client(khala.url) as http, http_client(one.url) as directly:
        thread = await Thread.create(directly)
        async with Observer(one.socket_url, thread).following() as observer:
            await observer.until(lambda view: view.revision is not None)
            one.send_signal(signal.SIGTERM)
            async with asyncio.timeout(5):
                while (ready := await directly.get("/api/health/ready")).status_code == 200:
                    await asyncio.sleep(0.02)
            assert ready.json()["stopping"]
            sent = await thread.send("/words=1")
            await observer.until(lambda view: sent["assistantMessageId"] in view.finished)
        assert await asyncio.to_thread(one.kill, signal.SIGCONT, within=20) == 0
        thread.http = http
        for _ in range(6):
            await thread.ended((await thread.send("/words=1"))["runId"])
        other.kill(signal.SIGTERM)
        refused = await thread.post("send", {"text": "Hello?"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["code"] == "unavailable"
        too_large = await http.post("/v1/chat/completions", json={})
        assert (too_large.status_code, too_large.headers["x-should-retry"]) == (503, "false")
        assert too_large.json()["error"]["code"] == "unavailable"
    del one.env["KHALA_DRAIN_SECONDS"]
