"""Deliveries of events to webhooks: signatures, retries, order, endpoints that misbehave, and processes that die."""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
import pytest_asyncio
from aiohttp import web
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from khala.domain.access import Caller
from khala.domain.errors import Unavailable
from khala.domain.webhooks import (
    EVENT_TYPES,
    MAX_AGE,
    MAX_ATTEMPTS,
    MAX_FAILING,
    DeliveryAttempt,
    WebhookEvent,
    shown_secret,
)
from khala.store.postgres.database import Database
from khala.store.threads import threads
from khala.store.webhooks import deliveries, endpoints, outbox
from khala.store.webhooks.deliveries import EventDelivery, ReplayRequest
from khala.store.webhooks.endpoints import StoredEndpoint
from khala.tools.http_client import GuardedClient
from khala.tools.webhook_client import WebhookClient
from khala.webhooks import dispatcher as dispatching
from khala.webhooks.dispatcher import WebhookDispatcher
from khala.webhooks.event_sender import EventSender
from tests.support import node_packages
from tests.support.certificates import certificate
from tests.support.event_endpoint import (
    LOOPBACK,
    EventEndpoint,
    answering,
    deliveries_of,
    event_endpoint,
    health_of,
    loopback_sender,
    new_endpoint,
    secret_of,
    settle,
)
from tests.support.pages import pages
from tests.support.store import CALLER, ask, claim, ending, new_thread, write

HOUR = 3600.0
VERIFY = Path(node_packages.__file__).parent / "webhook_node" / "verify.mjs"


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[EventEndpoint]:
    async with event_endpoint() as receiving:
        yield receiving


@pytest.fixture
def dispatcher(db: Database) -> WebhookDispatcher:
    return WebhookDispatcher(db, loopback_sender(db))


async def record(db: Database, thread_id: UUID, number: int = 0) -> None:
    """Commit an event of the thread."""
    async with db.driver() as driver, driver.transaction():
        await driver.execute("SELECT FROM threads WHERE id = $1 FOR NO KEY UPDATE", thread_id)
        await outbox.record_one(driver, "thread.claimed", thread_id, number=number)


async def test_the_published_libraries_verify_events_and_refuse_changed_ones(
    db: Database, receiver: EventEndpoint, dispatcher: WebhookDispatcher
) -> None:
    endpoint = await new_endpoint(db, receiver.url)
    thread_id = await new_thread(db)
    await settle(dispatcher)
    (received,) = receiver.received
    event = received.verify(secret_of(endpoint))
    assert event["type"] == "thread.created"
    assert event["version"] == 1
    assert event["data"] == {"threadId": str(thread_id), "revision": 1}
    with pytest.raises(Exception, match="No matching signature"):
        received.verify(shown_secret(bytes(32)))
    variables = {"SECRET": secret_of(endpoint), "HEADERS": json.dumps(received.headers), "BODY": received.raw.decode()}
    assert await node_packages.run(VERIFY, **variables) == {"type": "thread.created"}
    with pytest.raises(AssertionError, match="No matching signature"):
        await node_packages.run(VERIFY, **variables | {"BODY": received.raw.decode().replace("created", "deleted")})


async def test_both_secrets_sign_while_a_rotation_overlaps(
    db: Database, receiver: EventEndpoint, dispatcher: WebhookDispatcher
) -> None:
    before = await new_endpoint(db, receiver.url)
    after = await endpoints.rotate_secret(db, before.scope_id, before.id, 3600, caller=Caller())
    await new_thread(db)
    await settle(dispatcher)
    for secret in (secret_of(before), secret_of(after)):
        receiver.received[0].verify(secret)
    last = await endpoints.rotate_secret(db, before.scope_id, before.id, 0, caller=Caller())
    await new_thread(db)
    await settle(dispatcher)
    receiver.received[1].verify(secret_of(last))
    with pytest.raises(Exception, match="No matching signature"):
        receiver.received[1].verify(secret_of(after))


async def test_a_failed_event_keeps_its_id_and_holds_up_its_thread_only(
    db: Database, receiver: EventEndpoint, dispatcher: WebhookDispatcher
) -> None:
    await new_endpoint(db, receiver.url, events=["thread.claimed"])
    stuck, other = await new_thread(db), await new_thread(db)

    async def refuse_the_first(request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        refused = body["data"]["threadId"] == str(stuck) and body["data"]["number"] == 1
        return web.Response(status=500 if refused else 204)

    receiver.answer = refuse_the_first
    for number in (1, 2):
        await record(db, stuck, number)
        await record(db, other, number)
    await settle(dispatcher)
    seen = [(each.body["data"]["threadId"], each.body["data"]["number"]) for each in receiver.received]
    assert [number for thread, number in seen if thread == str(other)] == [1, 2]
    assert [number for thread, number in seen if thread == str(stuck)] == [1]
    receiver.answer = answering(200)
    dispatcher.ahead += 60
    await settle(dispatcher)
    of_stuck = [each for each in receiver.received if each.body["data"]["threadId"] == str(stuck)]
    assert [each.body["data"]["number"] for each in of_stuck] == [1, 1, 2]
    assert of_stuck[0].id == of_stuck[1].id != of_stuck[2].id
    assert of_stuck[0].body == of_stuck[1].body


async def test_an_event_is_given_up_after_a_day_and_the_endpoint_is_disabled_after_days(
    db: Database, receiver: EventEndpoint, dispatcher: WebhookDispatcher
) -> None:
    endpoint = await new_endpoint(db, receiver.url, events=["thread.claimed"])
    receiver.answer = answering(500, "broken" * 1000)
    thread_id = await new_thread(db)
    await record(db, thread_id, 1)
    await record(db, thread_id, 2)
    await settle(dispatcher)
    while (await deliveries_of(db, endpoint))[0].state == "pending":
        dispatcher.ahead += HOUR
        await settle(dispatcher)
    first = (await deliveries_of(db, endpoint))[0]
    assert first.state == "failed"
    assert 10 <= first.attempts <= MAX_ATTEMPTS
    assert MAX_AGE <= timedelta(seconds=dispatcher.ahead) <= MAX_AGE + timedelta(hours=5)
    assert (first.response_status, first.response) == (500, ("broken" * 1000)[:500])
    assert first.error == "The endpoint answered with status 500."
    dispatcher.ahead += 400
    await settle(dispatcher)
    assert (await deliveries_of(db, endpoint))[1].attempts > 0, "the next event of the thread follows"
    assert (await health_of(db, endpoint)).config.is_enabled
    while (await health_of(db, endpoint)).config.is_enabled:
        dispatcher.ahead += HOUR
        await settle(dispatcher)
        if dispatcher.ahead > 2 * MAX_FAILING.total_seconds():
            break
        await record(db, thread_id, 3)
    disabled = await health_of(db, endpoint)
    assert not disabled.config.is_enabled
    assert "Every request has failed since" in (disabled.health.disabled_reason or "")
    assert MAX_FAILING <= timedelta(seconds=dispatcher.ahead) <= MAX_FAILING + timedelta(hours=4)
    requests = len(receiver.received)
    assert requests < 400, "pauses bound the requests to an endpoint that fails"
    before = len(await deliveries_of(db, endpoint))
    await record(db, thread_id, 4)
    assert len(await deliveries_of(db, endpoint)) == before, "nothing is recorded for a disabled endpoint"
    receiver.answer = answering(200)
    await endpoints.change(db, endpoint.scope_id, endpoint.id, {"is_enabled": True}, caller=Caller())
    dispatcher.ahead += 4 * HOUR
    await settle(dispatcher)
    left = [each for each in await deliveries_of(db, endpoint) if each.state == "pending"]
    assert left == []
    assert len(receiver.received) > requests, "what has waited is delivered"


async def test_gone_disables_the_endpoint_at_once(
    db: Database, receiver: EventEndpoint, dispatcher: WebhookDispatcher
) -> None:
    endpoint = await new_endpoint(db, receiver.url)
    receiver.answer = answering(410)
    await new_thread(db)
    await settle(dispatcher)
    gone = await health_of(db, endpoint)
    assert not gone.config.is_enabled
    assert "410" in (gone.health.disabled_reason or "")


@pytest.mark.parametrize(("status", "asked", "waits"), [(429, "600", 600), (503, "999999", 3600), (500, "600", 0)])
async def test_retry_after_is_honoured_within_bounds(
    db: Database, receiver: EventEndpoint, dispatcher: WebhookDispatcher, status: int, asked: str, waits: int
) -> None:
    await new_endpoint(db, receiver.url)
    receiver.answer = answering(status, Retry_After=asked)
    await new_thread(db)
    seconds = await settle(dispatcher)
    assert seconds <= 30
    dispatcher.ahead += max(10, waits - 5)
    receiver.answer = answering(200)
    await settle(dispatcher)
    assert len(receiver.received) == (1 if waits else 2)
    dispatcher.ahead += 30
    await settle(dispatcher)
    assert len(receiver.received) == 2


async def _hang(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def _drip(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b".")
        await asyncio.sleep(0.02)


async def _flood(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": str(1 << 30)})
    await response.prepare(request)
    chunk = bytes(1 << 20)
    for _ in range(1 << 10):
        await response.write(chunk)
    raise AssertionError("the whole body was read")


async def test_a_slow_endpoint_ends_in_time_and_a_large_body_is_not_read(db: Database, receiver: EventEndpoint) -> None:
    dispatcher = WebhookDispatcher(db, loopback_sender(db, timeout_seconds=0.4))
    endpoint = await new_endpoint(db, receiver.url, events=["thread.claimed"])
    for answer in (_hang, _drip, _flood):
        receiver.answer = answer
        await record(db, await new_thread(db))
        await settle(dispatcher)
    hung, dripped, flooded = await deliveries_of(db, endpoint)
    assert (hung.state, hung.response_status, hung.error) == ("pending", None, "Timed out after 0.4 s.")
    # The status says that they have taken the event.
    assert (dripped.state, flooded.state) == ("delivered", "delivered")
    assert (dripped.response or "").startswith("...")
    assert len(flooded.response or "") <= 500


async def test_private_addresses_are_refused_and_redirects_are_not_followed(
    db: Database, receiver: EventEndpoint, dispatcher: WebhookDispatcher
) -> None:
    endpoint = await new_endpoint(db, receiver.url)
    receiver.answer = answering(302, Location=receiver.url)
    await new_thread(db)
    await settle(dispatcher)
    assert len(receiver.received) == 1
    (redirected,) = await deliveries_of(db, endpoint)
    assert (redirected.state, redirected.response_status) == ("pending", 302)
    guarded = WebhookDispatcher(db, EventSender(db, WebhookClient(GuardedClient())))
    guarded.ahead = 60
    await settle(guarded)
    (refused,) = await deliveries_of(db, endpoint)
    assert refused.response_status is None
    assert "an address that is not public" in (refused.error or "")
    assert len(receiver.received) == 1


async def test_an_endpoint_with_an_expired_certificate_gets_nothing_and_the_delivery_says_why(
    db: Database, tmp_path: Path
) -> None:
    file = certificate(tmp_path, "localhost", days=-1)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(file)
    trust = ssl.create_default_context(cafile=file)
    sender = EventSender(db, WebhookClient(GuardedClient(allow=LOOPBACK, trust=trust)))
    async with pages(tls) as serving:
        endpoint = await new_endpoint(db, f"https://localhost:{serving.port}/")
        dispatcher = WebhookDispatcher(db, sender)
        dispatcher.ahead = 60
        await new_thread(db)
        await settle(dispatcher)
        (failed,) = await deliveries_of(db, endpoint)
        assert (failed.state, failed.response_status, serving.requests) == ("pending", None, [])
    assert "certificate has expired" in (failed.error or "")


async def test_an_endpoint_that_hangs_delays_no_other(db: Database, receiver: EventEndpoint) -> None:
    running = WebhookDispatcher(db, loopback_sender(db))
    async with event_endpoint() as hanging:
        hanging.answer = _hang
        await new_endpoint(db, hanging.url)
        await new_endpoint(db, receiver.url)
        for _ in range(10):
            await new_thread(db)
        task = asyncio.create_task(running.run())
        try:
            await receiver.wait_for(10)
            assert len(hanging.received) <= deliveries.MAX_IN_FLIGHT
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_events_of_a_thread_are_in_order_while_processes_and_writers_compete(
    db: Database, receiver: EventEndpoint
) -> None:
    await new_endpoint(db, receiver.url, events=["thread.claimed"])
    thread_ids = [await new_thread(db) for _ in range(4)]
    processes = [WebhookDispatcher(db, loopback_sender(db)) for _ in range(3)]
    tasks = [asyncio.create_task(process.run()) for process in processes]

    async def commit(thread_id: UUID) -> None:
        for number in range(10):
            await record(db, thread_id, number)
            for process in processes:
                process.handle_notification("")

    try:
        await asyncio.gather(*map(commit, thread_ids))
        await receiver.wait_for(40)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for thread_id in map(str, thread_ids):
        of_thread = [each.body["data"] for each in receiver.received if each.body["data"]["threadId"] == thread_id]
        assert [data["number"] for data in of_thread] == list(range(10))


async def test_a_lost_process_leaves_its_delivery_to_another(
    db: Database, receiver: EventEndpoint, dispatcher: WebhookDispatcher
) -> None:
    endpoint = await new_endpoint(db, receiver.url)
    await new_thread(db)
    lost = await deliveries.claim(db, endpoint.id, most=10, lease_seconds=dispatching.LEASE_SECONDS)
    assert lost is not None
    assert len(lost.deliveries) == 1
    await settle(dispatcher)
    assert receiver.received == []
    dispatcher.ahead = dispatching.LEASE_SECONDS + 1
    await settle(dispatcher)
    assert len(receiver.received) == 1
    late = await deliveries.record(db, lost.deliveries[0], DeliveryAttempt(duration_ms=1, status=500), jitter=0)
    assert late is None, "the attempt of the lost process counts no longer"
    (delivered,) = await deliveries_of(db, endpoint)
    assert delivered.state == "delivered"


async def test_a_replay_delivers_again_in_order_with_the_same_ids(
    db: Database, receiver: EventEndpoint, dispatcher: WebhookDispatcher
) -> None:
    endpoint = await new_endpoint(db, receiver.url, events=["thread.claimed"])
    thread_id, other = await new_thread(db), await new_thread(db)
    for number in range(5):
        await record(db, thread_id, number)
        await record(db, other, number)
    await settle(dispatcher)
    first = [each.id for each in receiver.received if each.body["data"]["threadId"] == str(thread_id)]
    since = endpoint.created_at
    request = ReplayRequest(since=since, thread_id=thread_id, limit=3)
    replayed, last = await deliveries.replay(db, endpoint.scope_id, endpoint.id, request)
    assert replayed == 3
    await record(db, thread_id, 5)
    receiver.received.clear()
    await settle(dispatcher)
    assert [each.body["data"]["number"] for each in receiver.received] == [0, 1, 2, 5]
    assert [each.id for each in receiver.received[:3]] == first[:3]
    assert last is not None
    rest = ReplayRequest(since=since, thread_id=thread_id, after=last)
    assert (await deliveries.replay(db, endpoint.scope_id, endpoint.id, rest))[0] == 3
    everything = ReplayRequest(since=since, after_revision=10**6)
    assert (await deliveries.replay(db, endpoint.scope_id, endpoint.id, everything)) == (0, None)


async def test_a_long_replay_of_one_thread_makes_progress(
    db: Database, receiver: EventEndpoint, dispatcher: WebhookDispatcher
) -> None:
    endpoint = await new_endpoint(db, receiver.url, events=["thread.claimed"])
    thread_id, other = await new_thread(db), await new_thread(db)
    count = 2 * deliveries.MAX_EXAMINED + 50
    async with db.driver() as driver, driver.transaction():
        events = [WebhookEvent(type="thread.claimed", thread_id=thread_id, data={"n": n}) for n in range(count)]
        await outbox.record(driver, events)
    async with db.driver() as driver:
        await driver.execute("UPDATE webhook_deliveries SET state = 'delivered', due_at = NULL WHERE seq % 50 <> 0")
    await record(db, other)
    await deliveries.replay(db, endpoint.scope_id, endpoint.id, ReplayRequest(since=endpoint.created_at))
    receiver.answer = _hang
    task = asyncio.create_task(dispatcher.run())
    try:
        received = await receiver.wait_for(2)
        async with db.driver() as driver:
            due = await driver.fetchval("SELECT count(*) FROM webhook_deliveries WHERE due_at IS NOT NULL")
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert {each.body["data"]["threadId"] for each in received} == {str(thread_id), str(other)}
    assert due == 2, "only the heads of the threads are due"


async def test_content_is_sent_only_where_it_was_asked_for_and_while_it_exists(
    db: Database, receiver: EventEndpoint, dispatcher: WebhookDispatcher
) -> None:
    async with event_endpoint() as plain:
        await new_endpoint(db, plain.url)
        await new_endpoint(db, receiver.url, include_content=True)
        thread_id = await new_thread(db)
        await ask(db, thread_id, "En taro Adun " + "x" * 20_000)
        await settle(dispatcher)
        created = next(each for each in receiver.received if each.type == "message.created")
        assert created.body["data"]["text"].startswith("En taro Adun")
        assert len(created.body["data"]["text"]) == 16_384
        assert created.body["data"]["truncated"] is True
        assert not any(b"En taro" in each.raw for each in plain.received)
        await threads.reset(db, thread_id, CALLER, welcome="")
        await ask(db, thread_id, "Forgotten")
        await threads.remove(db, thread_id, CALLER)
        await settle(dispatcher)
        assert not any(b"Forgotten" in each.raw for each in receiver.received)
        async with db.driver() as driver:
            stored = await driver.fetchval("SELECT count(*) FROM webhook_deliveries WHERE data::text ~ 'taro|Forgot'")
        assert stored == 0, "the outbox has no text of messages"


async def test_the_events_of_a_run_have_their_order_and_facts(
    db: Database, receiver: EventEndpoint, dispatcher: WebhookDispatcher
) -> None:
    await new_endpoint(db, receiver.url)
    thread_id = await new_thread(db)
    sent = await ask(db, thread_id)
    (claimed,) = await claim(db)
    await write(db, ending(claimed.lease, 0, ()))
    await settle(dispatcher)
    assert [each.type for each in receiver.received] == [
        "thread.created",
        "message.created",
        "run.started",
        "run.finished",
    ]
    finished = receiver.received[-1].body["data"]
    assert finished["runId"] == str(sent.run_id)
    assert finished["messageId"] == str(sent.assistant_message_id)
    assert finished["userMessageId"] == str(sent.user_message_id)
    assert (finished["status"], finished["reason"]) == ("final", "stop")
    assert finished["usage"] == {"inputTokens": 1, "outputTokens": 2}
    await ask(db, thread_id)
    await threads.remove(db, thread_id, CALLER)
    await settle(dispatcher)
    assert [each.type for each in receiver.received[4:]] == ["message.created", "run.cancelled", "thread.deleted"]
    assert {each.type for each in receiver.received} <= set(EVENT_TYPES)


async def test_the_hot_path_and_the_dispatcher_read_few_rows_of_many(db: Database) -> None:
    thread_id = await new_thread(db)
    endpoint = await new_endpoint(db, "http://127.0.0.1:9/", events=["thread.claimed"])
    async with db.driver() as driver:
        await driver.execute(
            "INSERT INTO webhook_endpoints (id, scope_id, url, secret)"
            " SELECT gen_random_uuid(), gen_random_uuid(), 'https://a', 's' FROM generate_series(1, 5000)"
        )
        await driver.execute(
            "INSERT INTO webhook_deliveries (endpoint_id, seq, id, thread_id, revision, type, data, due_at, created_at)"
            " SELECT $1, nextval('webhook_deliveries_seq'), gen_random_uuid(), $2, 1, 'thread.claimed', '{}',"
            " to_timestamp(0), now() FROM generate_series(1, 5000)",
            endpoint.id,
            thread_id,
        )
        await driver.execute("ANALYZE webhook_endpoints, webhook_deliveries")
        wanted = f"SELECT {outbox.IS_WANTED.format('threads.owner_id')} FROM threads WHERE id = '{thread_id}'"
        for statement in (wanted, deliveries.LOOK.replace("$1", "0.0")):
            plan = "\n".join(
                row[0] for row in await driver.fetch(f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {statement}")
            )
            assert "Seq Scan on webhook_deliveries" not in plan, plan
            assert re.search(r"rows=\d{4}", plan) is None, plan
        assert "webhook_endpoints_scope_id_idx" in "\n".join(row[0] for row in await driver.fetch(f"EXPLAIN {wanted}"))


class ScriptedSender(EventSender):
    """Sends nothing: the outcomes come from a list, and then all attempts succeed."""

    def __init__(self, db: Database, outcomes: list[str]) -> None:
        super().__init__(db, WebhookClient(GuardedClient()))
        self.outcomes = outcomes
        self.received: list[tuple[UUID, UUID, int]] = []

    async def send(self, endpoint: StoredEndpoint, delivery: EventDelivery) -> DeliveryAttempt:
        outcome = self.outcomes.pop() if self.outcomes else "taken"
        if outcome != "lost before":
            self.received.append((endpoint.id, delivery.thread_id, delivery.data["number"]))
        if outcome.startswith("lost"):
            # As if the process were killed: nothing is recorded, and the lease lapses.
            raise Unavailable("lost")
        await asyncio.sleep(0)
        status = {"taken": 200, "fails": 500, "slow down": 429}[outcome]
        return DeliveryAttempt(duration_ms=1, status=status, retry_after=7)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("event"), st.integers(0, 2)),
        st.tuples(st.just("look"), st.integers(0, 1)),
        st.tuples(st.just("pass"), st.sampled_from([1, 10, 50, 400])),
    ),
    min_size=1,
    max_size=25,
)
OUTCOMES = st.lists(st.sampled_from(["taken", "fails", "slow down", "lost before", "lost after"]), max_size=12)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=STEPS, outcomes=OUTCOMES)
@example(
    # Both processes find the endpoint busy, and look at it again after a time.
    steps=[("event", 1), ("event", 2), ("look", 0), ("event", 0), ("look", 0), ("look", 1)],
    outcomes=["fails", "lost before"],
)
def test_each_committed_event_is_delivered_in_order_to_each_endpoint_whatever_fails(
    database_url: str, steps: list[tuple[str, int]], outcomes: list[str]
) -> None:
    asyncio.run(_deliver_in_order(database_url, steps, list(outcomes)))


async def _deliver_in_order(database_url: str, steps: list[tuple[str, int]], outcomes: list[str]) -> None:
    db = Database(database_url, pool_size=8)
    try:
        async with db.driver() as driver:
            await driver.execute("DELETE FROM webhook_deliveries")
            await driver.execute("DELETE FROM webhook_endpoints")
        thread_ids = [await new_thread(db) for _ in range(3)]
        found = [await new_endpoint(db, "http://127.0.0.1:9/") for _ in range(2)]
        sender = ScriptedSender(db, outcomes)
        processes = [WebhookDispatcher(db, sender) for _ in range(2)]
        committed = [0, 0, 0]
        for kind, number in steps:
            if kind == "event":
                await record(db, thread_ids[number], committed[number])
                committed[number] += 1
            elif kind == "look":
                async with asyncio.TaskGroup() as attempts:
                    await processes[number].look(attempts)
            else:
                for process in processes:
                    process.ahead += number
        sender.outcomes.clear()
        for _ in range(40):
            for process in processes:
                process.ahead += 400
                await settle(process)
        for endpoint in found:
            for thread_id, count in zip(thread_ids, committed, strict=True):
                numbers = [n for one, thread, n in sender.received if (one, thread) == (endpoint.id, thread_id)]
                assert list(dict.fromkeys(numbers)) == list(range(count))
                assert numbers == sorted(numbers), "an event is repeated only before the next one"
    finally:
        await db.close()
