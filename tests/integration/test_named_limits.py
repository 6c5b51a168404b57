"""Every 429 names the limit that refused the request."""

from typing import Any

import httpx

from tests.support.frames import socket
from tests.support.in_process import khala


def named(problem: dict[str, Any]) -> dict[str, Any]:
    """The fields that name the limit."""
    return {name: problem.get(name) for name in ("limit", "scope", "most")}


def assert_retry(response: httpx.Response, problem: dict[str, Any]) -> None:
    """The body and the header say the same seconds."""
    assert response.status_code == httpx.codes.TOO_MANY_REQUESTS
    assert problem["retryAfter"] == int(response.headers["retry-after"]) >= 1


async def test_a_refused_send_names_the_limit_that_refused_it(database_url: str) -> None:
    queue = {"options": {"ifBusy": "queue"}}
    async with khala(
        database_url, with_executor=False, KHALA_ANON_RUNS_PER_HOUR="2", KHALA_RUNS_PER_OWNER="3", KHALA_QUEUE_LIMIT="4"
    ) as server:
        thread = await server.thread()
        await thread.send("One")
        await thread.send("Two", **queue)
        over_budget = await thread.post("send", {"text": "Three", **queue})
        assert_retry(over_budget, over_budget.json())
        assert named(over_budget.json()) == {"limit": "runs_per_hour", "scope": "key", "most": "2"}
        for _ in range(2):
            await (await server.thread()).send("More")
        full = await (await server.thread()).post("send", {"text": "Five"})
        assert_retry(full, full.json())
        assert named(full.json()) == {"limit": "queued_runs", "scope": "deployment", "most": "4"}


async def test_too_many_requests_are_named_in_the_shape_of_each_api(database_url: str) -> None:
    async with khala(database_url, with_executor=False, KHALA_REQUESTS_PER_MINUTE="2") as server:
        for _ in range(2):
            await server.http.get("/api/models")
        expected = {"limit": "requests_per_minute", "scope": "network", "most": "2"}
        problem = await server.http.get("/api/models")
        assert_retry(problem, problem.json())
        assert named(problem.json()) == expected
        shaped = await server.http.get("/v1/models")
        assert_retry(shaped, shaped.json()["error"])
        assert named(shaped.json()["error"]) == expected
        assert shaped.json()["error"]["type"] == "rate_limit_error"
        tools = await server.http.post("/mcp", json={})
        assert_retry(tools, tools.json())
        assert named(tools.json()) == expected


async def test_an_error_frame_names_the_limit_too(database_url: str) -> None:
    async with khala(database_url, with_executor=False) as server, socket(server) as feed:
        thread = await server.thread()
        await feed.subscribe(thread)
        for _ in range(40):
            await feed.send({"type": "presence", "threadId": thread.id, "state": {}})
        error = await feed.until("error")
    assert error["code"] == "rate_limited"
    assert error["retryAfter"] == 1
    assert named(error) == {"limit": "presence_frames_per_second", "scope": "connection", "most": "5"}
