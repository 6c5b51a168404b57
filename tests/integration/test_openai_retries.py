"""Retries of a completion request make one run, recognised by the idempotency key or the client's retry count."""

import asyncio
import base64
import contextlib
import json
import time
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
import openai
import pytest
import pytest_asyncio

from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.chat import RunOptions
from khala.domain.errors import Conflict
from khala.domain.idempotency import RequestIdentity
from khala.store.accounts import api_tokens
from khala.store.operations import retention
from khala.store.operations.retention import RetentionPolicy
from khala.store.postgres.database import Database
from khala.store.runs import completion_requests
from khala.store.threads import sends, threads
from khala.store.threads.sends import SendRequest
from tests.support import postgres
from tests.support.answer_dropping import losing_answers
from tests.support.callers import owned_thread, person
from tests.support.client import text_of
from tests.support.forwarder import forwarder
from tests.support.in_process import InProcessServer, khala
from tests.support.mcp_server import PNG
from tests.support.openai_api import WEATHER, Requester, user
from tests.support.shared_server import server_fixture
from tests.support.store import HIGH_LIMITS

pytestmark = pytest.mark.asyncio(loop_scope="module")

WITHIN = 30.0
SLOW = "/words=30 /pace=30"
IMAGE = {"url": f"data:image/png;base64,{base64.b64encode(PNG).decode()}"}
Headers = dict[str, Any]

server = server_fixture()


@pytest_asyncio.fixture(loop_scope="module")
async def requester(server: InProcessServer, store: Database) -> Requester:
    return await Requester.new(server, store)


async def runs_of(store: Database, requester: Requester) -> list[UUID]:
    """The ids of all runs of the requester, oldest first."""
    async with store.driver() as driver:
        query = "SELECT id FROM runs WHERE user_id = $1 ORDER BY created_at, id"
        return [row["id"] for row in await driver.fetch(query, requester.person.id)]


async def post(
    requester: Requester, text: str, *, inside: InProcessServer | None = None, stream: bool = False, **headers: Any
) -> Any:
    """The whole response to a message: its status, run and text."""
    body = {"model": "khala", "messages": user(text), "stream": stream}
    named = requester.person.headers | {name.replace("_", "-"): value for name, value in headers.items()}
    http = (inside or requester.inside).http
    return CompletionResponse(await http.post("/v1/chat/completions", json=body, headers=named, timeout=WITHIN))


class CompletionResponse:
    """The response to a completion request."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.run_id = UUID(response.headers["x-run-id"]) if response.is_success else None
        self.text, self.error = "", None
        if not response.is_success:
            self.error = response.json()["error"]
        elif response.headers["content-type"].startswith("application/json"):
            self.text = response.json()["choices"][0]["message"]["content"]
        else:
            lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
            assert lines[-1] == "[DONE]"
            deltas = [json.loads(line)["choices"][0]["delta"] for line in lines[:-1]]
            self.text = "".join(delta.get("content", "") for delta in deltas)


def client_at(url: str, requester: Requester, **more: Any) -> openai.AsyncOpenAI:
    """OpenAI's own client, unmodified, with its own retries."""
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=requester.person.token, **more)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("lost", [1, 2])
async def test_the_clients_own_retries_of_an_answer_that_was_lost_make_one_run(
    server: InProcessServer, store: Database, requester: Requester, stream: bool, lost: int
) -> None:
    async with losing_answers(server.url, lost) as way, client_at(way.url, requester) as client:
        answer: Any = await client.chat.completions.create(model="khala", messages=user("/words=9"), stream=stream)
        if stream:
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in answer])
        else:
            text = answer.choices[0].message.content
    assert text == " ".join(f"word{number}" for number in range(1, 10))
    assert (way.lost, way.connections) == (lost, lost + 1), "the client sent the request again"
    assert len(await runs_of(store, requester)) == 1


async def test_a_connection_that_is_cut_in_the_midst_of_a_run_makes_one_run(
    server: InProcessServer, store: Database, requester: Requester
) -> None:
    port = int(server.url.rpartition(":")[2])
    with forwarder(port) as way:
        async with client_at(way.url, requester) as client:
            asking = asyncio.create_task(client.chat.completions.create(model="khala", messages=user(SLOW)))
            async with asyncio.timeout(WITHIN):
                while not await runs_of(store, requester):
                    await asyncio.sleep(0.01)
                assert await asyncio.to_thread(way.cut) == 1
                completion = await asking
    (run_id,) = await runs_of(store, requester)
    assert completion.khala["runId"] == str(run_id)  # type: ignore[attr-defined]
    assert completion.choices[0].message.content == " ".join(f"word{number}" for number in range(1, 31))


@pytest.mark.parametrize("stream", [False, True])
async def test_the_same_key_returns_the_same_answer_from_its_start(
    store: Database, requester: Requester, stream: bool
) -> None:
    first = await post(requester, "/words=20 /pace=0", stream=stream, idempotency_key="one")
    again = await post(requester, "/words=20 /pace=0", stream=stream, idempotency_key="one")
    assert (first.run_id, first.text) == (again.run_id, again.text)
    assert first.text.startswith("word1 word2 ")
    other = await post(requester, "/words=20 /pace=0", stream=stream, idempotency_key="two")
    assert await runs_of(store, requester) == [first.run_id, other.run_id]


async def test_a_completion_is_the_same_to_its_last_byte(requester: Requester) -> None:
    body = {"model": "khala", "messages": user("/echo yes")}
    first = await requester.post(body, Idempotency_Key="k")
    again = await requester.post(body, Idempotency_Key="k")
    assert first.content == again.content


async def test_a_key_with_another_body_or_other_headers_is_refused(store: Database, requester: Requester) -> None:
    first = await post(requester, "/echo one", idempotency_key="k")
    others: list[tuple[str, Headers]] = [
        ("/echo two", {}),
        ("/echo one", {"x_autopilot": "true"}),
        ("/echo one", {"x_budget_usd": "1"}),
    ]
    for text, headers in others:
        other = await post(requester, text, idempotency_key="k", **headers)
        assert (other.status, other.error["code"]) == (422, "idempotency_key_reused")
    assert await runs_of(store, requester) == [first.run_id]


async def test_a_client_does_not_retry_a_refused_key(server: InProcessServer, requester: Requester) -> None:
    await post(requester, "/echo one", idempotency_key="k")
    async with losing_answers(server.url, 0) as way, client_at(way.url, requester) as client:
        with pytest.raises(openai.UnprocessableEntityError):
            await client.chat.completions.create(
                model="khala", messages=user("two"), extra_headers={"Idempotency-Key": "k"}
            )
    assert way.connections == 1


async def test_a_key_is_scoped_to_its_account_and_shared_by_its_tokens(store: Database, requester: Requester) -> None:
    first = await post(requester, "/echo one", idempotency_key="k")
    other = await post(await Requester.new(requester.inside, store), "/echo one", idempotency_key="k")
    assert first.run_id != other.run_id
    _, second = await api_tokens.create(store, requester.person.caller, "another", ("read", "write"), None)
    again = await post(requester, "/echo one", idempotency_key="k", Authorization=f"Bearer {second}")
    assert again.run_id == first.run_id


@pytest.mark.parametrize("key", ["", "x" * 256, "tab\there"])
async def test_an_invalid_key_is_refused(requester: Requester, key: str) -> None:
    refused = await post(requester, "/echo one", idempotency_key=key)
    assert (refused.status, refused.error["param"]) == (400, "Idempotency-Key")


async def test_sixteen_requests_at_once_with_one_key_make_one_run_over_two_servers(
    server: InProcessServer, store: Database, requester: Requester
) -> None:
    async with khala(server.database_url, with_executor=False) as second:
        places = [server, second] * 8
        responses = await asyncio.gather(
            *(post(requester, SLOW, inside=place, idempotency_key="k") for place in places)
        )
    assert {(result.status, result.text) for result in responses} == {(200, responses[0].text)}
    assert await runs_of(store, requester) == [responses[0].run_id]


async def test_eight_requests_at_once_with_one_key_and_a_file_make_one_run_and_one_thread(
    store: Database, requester: Requester
) -> None:
    content = [{"type": "text", "text": "/echo seen"}, {"type": "image_url", "image_url": IMAGE}]
    body = {"model": "khala", "messages": [{"role": "user", "content": content}]}
    responses = await asyncio.gather(*(requester.post(body, Idempotency_Key="k") for _ in range(8)))
    assert {result.status_code for result in responses} == {200}
    assert len({result.headers["x-run-id"] for result in responses}) == len(await runs_of(store, requester)) == 1
    assert len((await requester.get("/api/threads"))["items"]) == 1


async def test_a_retry_joins_the_run_when_the_server_that_started_it_is_gone(postgres_url: str, template: str) -> None:
    async with contextlib.AsyncExitStack() as after:
        url = await after.enter_async_context(postgres.database(postgres_url, template))
        db = Database(url)
        after.push_async_callback(db.close)
        who = await person(db)
        async with khala(url, with_executor=False) as first:
            requester = Requester(first, who)
            by_key_headers: Headers = {"Idempotency_Key": "k"}
            retried: Headers = {"x_stainless_retry_count": "0"}
            for headers in (by_key_headers, retried):
                asking = asyncio.create_task(post(requester, "/words=7 /pace=0", **headers))
                async with asyncio.timeout(WITHIN):
                    while len(begun := await runs_of(db, requester)) < 1 + (headers is retried):
                        await asyncio.sleep(0.01)
                asking.cancel()
                await asyncio.wait({asking})
        async with khala(url) as second:
            requester = Requester(second, who)
            by_key = await post(requester, "/words=7 /pace=0", Idempotency_Key="k")
            by_client = await post(requester, "/words=7 /pace=0", x_stainless_retry_count="1")
        assert [by_key.run_id, by_client.run_id] == begun == await runs_of(db, requester)
        assert by_key.text == by_client.text == " ".join(f"word{number}" for number in range(1, 8))


async def test_equal_requests_that_are_no_retries_make_separate_runs_which_their_retries_join(
    store: Database, requester: Requester
) -> None:
    firsts = [await post(requester, "/echo yes", x_stainless_retry_count="0") for _ in range(2)]
    begun = [response.run_id for response in firsts]
    assert await runs_of(store, requester) == begun
    retries = await asyncio.gather(*(post(requester, "/echo yes", x_stainless_retry_count="1") for _ in range(2)))
    assert {retry.run_id for retry in retries} == set(begun)
    assert await runs_of(store, requester) == begun
    third = await post(requester, "/echo yes", x_stainless_retry_count="1")
    assert await runs_of(store, requester) == [*begun, third.run_id], (
        "a retry whose first attempt never arrived makes a run"
    )
    assert (await post(requester, "/echo yes", x_stainless_retry_count="2")).run_id == third.run_id
    plain = await post(requester, "/echo yes")
    assert plain.run_id not in {*begun, third.run_id}, "a request without a retry count always makes a run"


async def test_a_retry_joins_no_run_of_another_body_credential_or_account(
    store: Database, requester: Requester
) -> None:
    first = await post(requester, "/echo yes", x_stainless_retry_count="0")
    _, second = await api_tokens.create(store, requester.person.caller, "another", ("read", "write"), None)
    stranger = await Requester.new(requester.inside, store)
    others = [
        await post(requester, "/echo no", x_stainless_retry_count="1"),
        await post(requester, "/echo yes", x_stainless_retry_count="1", x_khala_tools="grep"),
        await post(requester, "/echo yes", x_stainless_retry_count="1", Authorization=f"Bearer {second}"),
        await post(stranger, "/echo yes", x_stainless_retry_count="1"),
    ]
    assert len({first.run_id, *(other.run_id for other in others)}) == 5
    assert (await post(requester, "/echo yes", x_stainless_retry_count="1")).run_id == first.run_id


async def backdate(store: Database, run_id: UUID, seconds: int) -> None:
    async with store.driver() as driver:
        query = """
            UPDATE completion_requests SET created_at = created_at - make_interval(secs => $2),
                   expires_at = expires_at - make_interval(secs => $2) WHERE run_id = $1
        """
        assert await driver.execute(query, run_id, float(seconds)) == "UPDATE 1"


async def test_with_a_key_a_request_is_remembered_for_a_day_and_then_forgotten(
    store: Database, requester: Requester
) -> None:
    first = await post(requester, "/echo yes", Idempotency_Key="k")
    await backdate(store, first.run_id, 86_370)
    assert (await post(requester, "/echo yes", Idempotency_Key="k")).run_id == first.run_id
    await backdate(store, first.run_id, 31)
    second = await post(requester, "/echo yes", Idempotency_Key="k")
    assert second.run_id != first.run_id
    assert (await post(requester, "/echo yes", Idempotency_Key="k")).run_id == second.run_id


async def test_without_a_key_a_retry_joins_what_began_in_the_last_ten_minutes(
    store: Database, requester: Requester
) -> None:
    first = await post(requester, "/echo yes", x_stainless_retry_count="0")
    await backdate(store, first.run_id, 570)
    assert (await post(requester, "/echo yes", x_stainless_retry_count="1")).run_id == first.run_id
    await backdate(store, first.run_id, 31)
    assert (await post(requester, "/echo yes", x_stainless_retry_count="2")).run_id != first.run_id


async def test_retention_purges_expired_requests(store: Database, requester: Requester) -> None:
    old, new = [await post(requester, "/echo yes", Idempotency_Key=key) for key in ("old", "new")]
    await backdate(store, old.run_id, 86_401)
    await retention.purge(store, RetentionPolicy(idle=timedelta(0)))
    async with store.driver() as driver:
        query = "SELECT run_id FROM completion_requests WHERE user_id = $1"
        assert [row["run_id"] for row in await driver.fetch(query, requester.person.id)] == [new.run_id]


async def test_an_error_before_there_was_a_run_is_not_remembered(store: Database, requester: Requester) -> None:
    async with requester.stream("/hang=2", x_autopilot="false") as busy:
        thread_id, run_id = busy.response.headers["x-thread-id"], busy.response.headers["x-run-id"]
        refused = await post(requester, "/echo yes", Idempotency_Key="k", x_thread_id=thread_id)
        assert (refused.status, refused.error["code"]) == (409, "run_active")
        cancel = await requester.inside.http.post(f"/api/runs/{run_id}/cancel", headers=requester.person.headers)
        cancel.raise_for_status()
        await requester.ended(run_id)
    done = await post(requester, "/echo yes", Idempotency_Key="k", x_thread_id=thread_id)
    assert (done.status, done.text) == (200, "yes")
    assert (await post(requester, "/echo yes", Idempotency_Key="k", x_thread_id=thread_id)).run_id == done.run_id
    assert [text_of(message) for message in await requester.thread(thread_id)][-2:] == ["/echo yes", "yes"]


async def test_a_key_whose_run_is_gone_makes_no_second_one(store: Database, requester: Requester) -> None:
    await post(requester, "/echo yes", Idempotency_Key="k")
    before = await runs_of(store, requester)
    [thread] = (await requester.get("/api/threads"))["items"]
    await threads.remove(store, UUID(thread["id"]), requester.person.caller)
    gone = await post(requester, "/echo yes", Idempotency_Key="k")
    assert (gone.status, gone.error["code"]) == (404, "run_not_found")
    assert await runs_of(store, requester) == before
    await retention.purge(store, RetentionPolicy(idle=timedelta(0)))
    gone = await post(requester, "/echo yes", Idempotency_Key="k")
    assert (gone.status, gone.error["code"]) == (404, "run_not_found")
    assert await runs_of(store, requester) == []


async def test_every_request_with_a_key_joins_its_run(store: Database, requester: Requester) -> None:
    first = await post(requester, "/echo yes", Idempotency_Key="k")
    async with store.driver() as driver:
        query = "UPDATE completion_requests SET attempts = 32766 WHERE run_id = $1"
        assert await driver.execute(query, first.run_id) == "UPDATE 1"
    again = [(await post(requester, "/echo yes", Idempotency_Key="k")).run_id for _ in range(3)]
    assert again == [first.run_id] * 3


async def test_tool_outcomes_sent_twice_continue_the_run_once(store: Database, requester: Requester) -> None:
    call = '/text Let me see. /call weather {"city": "Aiur"} /say It is fine.'
    body = {"model": "khala", "messages": user(call), "tools": [WEATHER]}
    completion = await requester.post(body)
    message = completion.json()["choices"][0]["message"]
    outcome = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
    messages = [*user(call), {key: message[key] for key in ("role", "content", "tool_calls")}, outcome]
    headers = {"x-thread-id": completion.headers["x-thread-id"], "Idempotency-Key": "k"}
    answers = [await requester.post(body | {"messages": messages}, **headers) for _ in range(2)]
    assert [response.json()["choices"][0]["message"]["content"] for response in answers] == ["It is fine."] * 2
    assert len(await runs_of(store, requester)) == 2


@pytest.mark.parametrize("headers", [{"Idempotency_Key": "k"}, {"x_stainless_retry_count": "1"}])
async def test_a_retry_of_a_run_canceled_by_its_disconnect_makes_another_run(
    store: Database, requester: Requester, headers: Headers
) -> None:
    leaves = headers | {"x_cancel_on_disconnect": "true"}
    async with requester.stream("/hang=2", x_autopilot="false", **leaves) as events:
        run_id = events.response.headers["x-run-id"]
        async for event in events:
            if event["choices"][0]["delta"].get("content"):
                break
    assert (await requester.ended(run_id))["status"] == "canceled"
    async with requester.stream("/hang=2", x_autopilot="false", **leaves) as again:
        assert again.response.headers["x-run-id"] != run_id


async def test_a_run_that_a_retry_has_joined_does_not_end_with_the_first_connection(
    store: Database, requester: Requester
) -> None:
    leaves = {"x_cancel_on_disconnect": "true", "Idempotency_Key": "k", "x_autopilot": "false"}
    async with requester.stream(SLOW, **leaves) as first, requester.stream(SLOW, **leaves) as second:
        await first.response.aclose()
        chunks = await second.all()
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])
    assert second.done
    assert text == " ".join(f"word{number}" for number in range(1, 31))
    assert len(await runs_of(store, requester)) == 1


def identity(caller: Caller, attempt: int, *, age: float = 0.0) -> RequestIdentity:
    assert caller.user_id is not None
    return RequestIdentity(
        user_id=caller.user_id,
        key_hash=None,
        fingerprint=b"f" * 32,
        attempt=attempt,
        received=time.monotonic() - age,
        run_id=ids.new(),
    )


@pytest.mark.asyncio(loop_scope="function")
async def test_a_first_attempt_overtaken_by_its_retry_joins_it_and_a_later_one_does_not(db: Database) -> None:
    who = await person(db)
    thread_id = await owned_thread(db, who)

    async def send(request: RequestIdentity) -> UUID:
        options = RunOptions(if_busy="queue")
        question = SendRequest(thread_id=thread_id, message_id=ids.new(), text="x", options=options, request=request)
        return (await sends.send(db, question, who.caller, HIGH_LIMITS))[0].run_id

    slow = identity(who.caller, 0, age=20.0)
    begun = await send(identity(who.caller, 1))
    assert await completion_requests.join(db, identity(who.caller, 0)) is None, "it arrives after its retry"
    with pytest.raises(Conflict):
        await send(slow)
    joined = await completion_requests.join(db, slow)
    assert joined is not None
    assert joined.sent.run_id == begun
    assert joined.attempt == 0, "the run continues for the retry if the first connection closes"
    assert await completion_requests.join(db, identity(who.caller, 0)) is None
    assert await send(identity(who.caller, 0)) != begun
