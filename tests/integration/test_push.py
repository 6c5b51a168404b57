"""Push notifications: who gets one, when, and what becomes of it. The push service decrypts as a browser does."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from uuid import UUID

import pytest
import pytest_asyncio
from msgspec import structs

from khala.domain import ids
from khala.domain.access import Caller, Role, key_hash
from khala.domain.errors import NotFound, Unauthorized
from khala.domain.plans.attempts import AttemptCompleted, AttemptOverBudget
from khala.domain.plans.commands import Edit, Pause, Resume, SkipStep, Start, Stop
from khala.domain.push import MAX_ATTEMPTS, MAX_FAILURES, MAX_SUBSCRIPTIONS
from khala.push.dispatcher import PushDispatcher
from khala.push.push_sender import PushSender
from khala.store.accounts import account_removal, api_tokens
from khala.store.plans import plans
from khala.store.postgres.database import Database
from khala.store.push import push_subscriptions
from khala.store.runs.leases import Lease
from khala.store.runs.parts import ApprovalRequest, Batch
from khala.store.sharing import sharing
from khala.store.threads import presence
from khala.store.threads.presence import PresenceRow
from khala.store.tools import approvals
from khala.store.tools.approvals import ApprovalDecision
from khala.tools.http_client import GuardedClient
from khala.tools.webhook_client import WebhookClient
from tests.support.callers import Person, owned_thread, person
from tests.support.push_service import Browser, PushService, push_service
from tests.support.shared_server import shared
from tests.support.store import CALLER, KEY, ask, batch, claim, ending, new_thread, write
from tests.support.stored_plans import drive, finished_plan, new_plan, started_plan

CONTACT = "mailto:ops@example.org"
LOOPBACK = (ip_network("127.0.0.0/8"),)
CALL = "call_1"
MINUTE = 60.0


@pytest_asyncio.fixture
async def service() -> AsyncIterator[PushService]:
    async with push_service() as serving:
        yield serving


@pytest.fixture
def dispatcher(db: Database) -> PushDispatcher:
    sender = PushSender(db, WebhookClient(GuardedClient(allow=LOOPBACK)), hosts=["127.0.0.1"], contact=CONTACT)
    dispatcher = PushDispatcher(db, sender)
    dispatcher.ahead = MINUTE
    return dispatcher


async def subscribed(
    db: Database, service: PushService, dispatcher: PushDispatcher, caller: Caller, *, answers: bool = False
) -> Browser:
    """A browser of this person, with a subscription."""
    browser = service.browser(await dispatcher.sender.public_key())
    await push_subscriptions.subscribe(db, caller, browser.stored(answers=answers))
    return browser


async def begin(db: Database, thread_id: UUID, caller: Caller = CALLER) -> Lease:
    """Begin a run that this caller asks for."""
    sent = await ask(db, thread_id, caller=caller)
    return next(one.lease for one in await claim(db) if one.lease.run_id == sent.run_id)


async def request_approval(db: Database, lease: Lease, call: str = CALL) -> None:
    """Let the run wait for a person."""
    ends = datetime.now(UTC) + timedelta(hours=1)
    request = ApprovalRequest(
        tool_call_id=call, tool="delete_file", args="{}", parameters="{}", digest="d" * 64, expires_at=ends
    )
    first = int(call.rpartition("_")[2])
    await write(db, Batch(lease=lease, parts=batch(lease, first, "x").parts, approvals=[request]))


async def begin_waiting_run(db: Database, thread_id: UUID, caller: Caller = CALLER) -> Lease:
    """Begin a run that waits for a person."""
    lease = await begin(db, thread_id, caller)
    await request_approval(db, lease, "call_0")
    return lease


async def pending_messages(db: Database) -> int:
    async with db.driver() as driver:
        return int(await driver.fetchval("SELECT count(*) FROM push_messages"))


async def subscription_count(db: Database) -> int:
    async with db.driver() as driver:
        return int(await driver.fetchval("SELECT count(*) FROM push_subscriptions"))


async def test_a_call_that_waits_is_told_to_the_guest_once_and_encrypted(
    db: Database, service: PushService, dispatcher: PushDispatcher
) -> None:
    thread_id = await new_thread(db)
    await subscribed(db, service, dispatcher, CALLER)
    await begin_waiting_run(db, thread_id)
    await dispatcher.look()
    (received,) = service.received
    assert received.message == {
        "kind": "waiting", "threadId": str(thread_id), "tool": "delete_file"
    }  # fmt: skip
    assert received.claims["sub"] == CONTACT
    assert received.headers["urgency"] == "high"
    assert received.headers["ttl"] == "86400"
    assert len(received.headers["topic"]) == 32
    await dispatcher.look()
    assert len(service.received) == 1
    assert await pending_messages(db) == 0


async def test_calls_of_one_thread_are_told_once_and_not_before_the_grace(
    db: Database, service: PushService, dispatcher: PushDispatcher
) -> None:
    thread_id = await new_thread(db)
    await subscribed(db, service, dispatcher, CALLER)
    lease = await begin_waiting_run(db, thread_id)
    await request_approval(db, lease, "call_1")
    dispatcher.ahead = 0
    assert 0 < await dispatcher.look() <= 2
    assert service.received == []
    dispatcher.ahead = MINUTE
    await dispatcher.look()
    (received,) = service.received
    assert "tool" not in received.message, "several calls wait"


async def test_a_call_that_was_decided_is_not_told(
    db: Database, service: PushService, dispatcher: PushDispatcher
) -> None:
    thread_id = await new_thread(db)
    await subscribed(db, service, dispatcher, CALLER)
    lease = await begin_waiting_run(db, thread_id)
    await approvals.decide(db, lease.run_id, "call_0", CALLER, ApprovalDecision(approved=False))
    await dispatcher.look()
    assert (service.received, await pending_messages(db)) == ([], 0)


async def test_nobody_is_told_who_has_the_thread_open_or_has_lost_access(
    db: Database, service: PushService, dispatcher: PushDispatcher
) -> None:
    owner, editor = await person(db, "Owner"), await person(db, "Editor")
    thread_id = await owned_thread(db, owner)
    await sharing.set_role(db, thread_id, editor.id, "editor", owner.caller)
    await sharing.join(db, thread_id, editor.id, editor.caller)
    for each in (owner, editor):
        await subscribed(db, service, dispatcher, each.caller)
    lease = await begin_waiting_run(db, thread_id, editor.caller)
    await dispatcher.look()
    assert len(service.received) == 2, "the owner and the member who asked"
    await write(db, ending(lease, 1, ()))
    await begin_waiting_run(db, thread_id, editor.caller)
    await sharing.remove_member(db, thread_id, editor.id, owner.caller)
    await set_present(db, thread_id, owner)
    await dispatcher.look()
    assert len(service.received) == 2
    assert await subscription_count(db) == 2, "they may have access to other threads"


async def set_present(db: Database, thread_id: UUID, who: Person) -> None:
    """Let a page of this person have the thread open."""
    row = PresenceRow(thread_id=thread_id, participant_id=ids.new(), user_id=who.id, name=None, state="{}")
    async with db.driver() as driver:
        await presence.write(driver, ids.new(), [row], [])


async def test_a_subscription_ends_with_its_credential_and_with_the_account(
    db: Database, service: PushService, dispatcher: PushDispatcher
) -> None:
    owner = await person(db)
    thread_id = await owned_thread(db, owner)
    session = Caller(user_id=owner.id, credential=owner.token_id)
    await subscribed(db, service, dispatcher, session)
    await api_tokens.revoke(db, owner.token_id, owner.caller)
    await begin_waiting_run(db, thread_id, owner.caller)
    await dispatcher.look()
    assert (service.received, await subscription_count(db)) == ([], 0)
    await subscribed(db, service, dispatcher, owner.caller)
    await account_removal.remove(db, owner.caller, owner.id)
    assert await subscription_count(db) == 0
    with pytest.raises(Unauthorized):
        await push_subscriptions.subscribe(db, owner.caller, service.browser("").stored())


async def test_a_subscription_without_a_session_has_to_be_confirmed(
    db: Database, service: PushService, dispatcher: PushDispatcher
) -> None:
    owner = await person(db)
    thread_id = await owned_thread(db, owner)
    by_jwt = Caller(user_id=owner.id)
    browser = await subscribed(db, service, dispatcher, by_jwt)
    async with db.driver() as driver:
        await driver.execute("UPDATE push_subscriptions SET confirmed_at = now() - interval '49 hours'")
    lease = await begin_waiting_run(db, thread_id, owner.caller)
    await dispatcher.look()
    assert (service.received, await pending_messages(db)) == ([], 0)
    await push_subscriptions.subscribe(db, by_jwt, browser.stored())
    await request_approval(db, lease, "call_1")
    await dispatcher.look()
    assert len(service.received) == 1


async def test_a_browser_belongs_to_the_account_that_subscribed_last(
    db: Database, service: PushService, dispatcher: PushDispatcher
) -> None:
    await new_thread(db)
    one, other, stranger = await person(db), await person(db), await person(db)
    browser = await subscribed(db, service, dispatcher, one.caller)
    await push_subscriptions.subscribe(db, CALLER, browser.stored())
    assert await subscribers(db) == [CALLER.author_id], "a guest: nobody is signed in"
    await push_subscriptions.subscribe(db, one.caller, browser.stored())
    await push_subscriptions.subscribe(db, other.caller, browser.stored())
    assert set(await subscribers(db)) == {CALLER.author_id, other.id}
    guess = structs.replace(browser.stored(), auth=bytes(16))
    await push_subscriptions.subscribe(db, stranger.caller, guess)
    assert set(await subscribers(db)) == {CALLER.author_id, other.id, stranger.id}


async def subscribers(db: Database) -> list[UUID]:
    async with db.driver() as driver:
        return [row["subject_id"] for row in await driver.fetch("SELECT subject_id FROM push_subscriptions")]


async def finish(db: Database, lease: Lease, *, after_seconds: float) -> None:
    """End the run, which began so many seconds ago."""
    async with db.driver() as driver:
        update = "UPDATE runs SET created_at = now() - make_interval(secs => $2) WHERE id = $1"
        await driver.execute(update, lease.run_id, after_seconds)
    await write(db, ending(lease, 0, ()))


async def test_a_long_answer_is_told_to_those_who_wish_it_and_have_not_read_it(
    db: Database, service: PushService, dispatcher: PushDispatcher
) -> None:
    owner = await person(db)
    thread_id = await owned_thread(db, owner)
    await subscribed(db, service, dispatcher, owner.caller)
    wishing = await subscribed(db, service, dispatcher, owner.caller, answers=True)
    await finish(db, await begin(db, thread_id, owner.caller), after_seconds=5)
    assert await pending_messages(db) == 0, "it was short"
    await finish(db, await begin(db, thread_id, owner.caller), after_seconds=40)
    await dispatcher.look()
    (received,) = service.received
    assert received.message == {"kind": "answer", "threadId": str(thread_id)}
    assert received.headers["urgency"] == "normal"
    await finish(db, await begin(db, thread_id, owner.caller), after_seconds=40)
    async with db.driver() as driver:
        await driver.execute("UPDATE listings SET read_revision = said_revision WHERE thread_id = $1", thread_id)
    await dispatcher.look()
    assert len(service.received) == 1
    assert wishing.endpoint.endswith("/1")


async def let_plans_take(db: Database, seconds: float) -> None:
    """Let all plans have been started and resumed so many seconds ago."""
    async with db.driver() as driver:
        at = "to_jsonb(now() - make_interval(secs => $1))"
        await driver.execute(f"UPDATE plan_events SET data = jsonb_set(data, '{{at}}', {at})", seconds)


async def test_a_plan_that_pauses_by_itself_is_told_to_its_owner_and_its_person_until_it_is_resumed(
    db: Database, service: PushService, dispatcher: PushDispatcher
) -> None:
    owner, editor, viewer = await person(db, "Owner"), await person(db, "Editor"), await person(db, "Viewer")
    thread_id = await owned_thread(db, owner)
    roles: tuple[tuple[Person, Role], ...] = ((editor, "editor"), (viewer, "viewer"))
    for member, role in roles:
        await sharing.set_role(db, thread_id, member.id, role, owner.caller)
        await sharing.join(db, thread_id, member.id, member.caller)
    for each in (owner, editor, viewer):
        await subscribed(db, service, dispatcher, each.caller, answers=True)
    plan_id = await started_plan(db, thread_id, editor.caller)
    await drive(db, plan_id, AttemptOverBudget())
    await dispatcher.look()
    news = {"kind": "waiting", "threadId": str(thread_id), "planId": str(plan_id), "reason": "budget"}
    assert [received.message for received in service.received] == [news, news]
    assert {received.headers["urgency"] for received in service.received} == {"high"}
    await plans.command(db, plan_id, editor.caller, Resume())
    await drive(db, plan_id)
    await drive(db, plan_id, AttemptOverBudget())
    await plans.command(db, plan_id, owner.caller, Resume())
    await drive(db, plan_id)
    await plans.command(db, plan_id, owner.caller, Pause(force=True))
    await drive(db, plan_id)
    assert await pending_messages(db) == 2, "a pause that a person asks for is not told"
    await dispatcher.look()
    assert (len(service.received), await pending_messages(db)) == (2, 0)


async def test_a_plan_that_another_person_has_edited_is_told_to_all_but_that_person_until_it_is_resumed(
    db: Database, service: PushService, dispatcher: PushDispatcher
) -> None:
    people, thread_id = await owner_and_editors(db, 3)
    owner, maker, starter, colleague = people
    for each in people:
        await subscribed(db, service, dispatcher, each.caller)
    plan_id = await new_plan(db, thread_id, maker.caller, steps="abcdef")
    await plans.command(db, plan_id, starter.caller, Start())
    await drive(db, plan_id)
    await plans.command(db, plan_id, colleague.caller, Edit(goal="Another"))
    await drive(db, plan_id, AttemptCompleted(summary="Done."))
    assert await pending_people(db) == {owner.id, maker.id, starter.id}
    await dispatcher.look()
    news = {"kind": "waiting", "threadId": str(thread_id), "planId": str(plan_id), "reason": "requested"}
    assert [received.message for received in service.received] == [news] * 3
    await plans.command(db, plan_id, starter.caller, Resume())
    await drive(db, plan_id)
    await plans.command(db, plan_id, owner.caller, Edit(goal="A third one"))
    await drive(db, plan_id, AttemptCompleted(summary="Done."))
    assert await pending_people(db) == {maker.id, starter.id}
    await plans.command(db, plan_id, starter.caller, Resume())
    await dispatcher.look()
    assert len(service.received) == 3, "it was resumed"


async def pending_people(db: Database) -> set[UUID]:
    """The people who are to be notified."""
    query = "SELECT subject_id FROM push_messages JOIN push_subscriptions ON push_subscriptions.id = subscription_id"
    async with db.driver() as driver:
        return {row["subject_id"] for row in await driver.fetch(query)}


async def owner_and_editors(db: Database, editors: int) -> tuple[list[Person], UUID]:
    """An owner, and so many editors of their thread."""
    people = [await person(db, f"Person {number}") for number in range(editors + 1)]
    thread_id = await owned_thread(db, people[0])
    for member in people[1:]:
        await sharing.set_role(db, thread_id, member.id, "editor", people[0].caller)
        await sharing.join(db, thread_id, member.id, member.caller)
    return people, thread_id


async def test_the_end_of_a_plan_is_told_to_its_owner_to_its_person_and_to_the_one_who_created_it(
    db: Database, service: PushService, dispatcher: PushDispatcher
) -> None:
    people, thread_id = await owner_and_editors(db, 3)
    owner, maker, starter, _ = people
    for each in people:
        await subscribed(db, service, dispatcher, each.caller, answers=True)
    plan_id = await new_plan(db, thread_id, maker.caller, steps="a")
    await plans.command(db, plan_id, starter.caller, Start())
    await drive(db, plan_id)
    await let_plans_take(db, 40)
    await drive(db, plan_id, AttemptCompleted(summary="Done."))
    assert await pending_people(db) == {owner.id, maker.id, starter.id}
    await dispatcher.look()
    plan_id = await new_plan(db, thread_id, maker.caller, steps="a")
    await plans.command(db, plan_id, starter.caller, Start())
    await drive(db, plan_id)
    await let_plans_take(db, 40)
    await plans.command(db, plan_id, starter.caller, SkipStep(step_id="a"))
    await drive(db, plan_id)
    assert await pending_people(db) == {owner.id, maker.id}, "not the person who leaves out the last step"


async def test_the_end_of_a_long_plan_is_told_to_its_person_who_wishes_it_and_has_not_read_it(
    db: Database, service: PushService, dispatcher: PushDispatcher
) -> None:
    owner = await person(db)
    thread_id = await owned_thread(db, owner)
    await subscribed(db, service, dispatcher, owner.caller)
    await subscribed(db, service, dispatcher, owner.caller, answers=True)
    await finished_plan(db, thread_id, owner.caller)
    stopped = await started_plan(db, thread_id, owner.caller)
    await let_plans_take(db, 40)
    await plans.command(db, stopped, owner.caller, Stop())
    await drive(db, stopped)
    assert await pending_messages(db) == 0, "one was short, and a person has stopped the other one"
    plan_id = await started_plan(db, thread_id, owner.caller)
    await let_plans_take(db, 40)
    await drive(db, plan_id, AttemptCompleted(summary="Done."))
    await dispatcher.look()
    (received,) = service.received
    assert received.message == {
        "kind": "answer", "threadId": str(thread_id), "planId": str(plan_id), "reason": "completed"
    }  # fmt: skip
    plan_id = await started_plan(db, thread_id, owner.caller)
    await let_plans_take(db, 40)
    await drive(db, plan_id, AttemptCompleted(summary="Done."))
    async with db.driver() as driver:
        await driver.execute(
            "UPDATE listings SET read_revision = threads.revision FROM threads WHERE id = thread_id AND id = $1",
            thread_id,
        )
    assert await pending_messages(db) == 1
    await dispatcher.look()
    assert (len(service.received), await pending_messages(db)) == (1, 0)


async def test_failures_are_retried_and_a_browser_that_has_left_is_forgotten(
    db: Database, service: PushService, dispatcher: PushDispatcher
) -> None:
    thread_id = await new_thread(db)
    await subscribed(db, service, dispatcher, CALLER)
    await begin_waiting_run(db, thread_id)
    service.status, service.headers = 429, {"Retry-After": "900"}
    await dispatcher.look()
    dispatcher.ahead += 800
    await dispatcher.look()
    assert service.refused == 1, "the push service asked to wait"
    dispatcher.ahead += 200
    service.status = 201
    await dispatcher.look()
    assert len(service.received) == 1
    await begin_waiting_run(db, await new_thread(db))
    service.status = 410
    await dispatcher.look()
    assert (await subscription_count(db), await pending_messages(db)) == (0, 0)


async def test_a_browser_whose_notifications_are_always_refused_is_forgotten(
    db: Database, service: PushService, dispatcher: PushDispatcher
) -> None:
    thread_id = await new_thread(db)
    await subscribed(db, service, dispatcher, CALLER)
    service.status = 403
    async with db.driver() as driver:
        await driver.execute("UPDATE push_subscriptions SET failures = $1", MAX_FAILURES - 2)
    await begin_waiting_run(db, thread_id)
    await dispatcher.look()
    assert await subscription_count(db) == 1
    await begin_waiting_run(db, await new_thread(db))
    await dispatcher.look()
    assert (await subscription_count(db), service.refused) == (0, 2)


async def test_an_outage_ends_no_subscription(db: Database, service: PushService, dispatcher: PushDispatcher) -> None:
    thread_id = await new_thread(db)
    await subscribed(db, service, dispatcher, CALLER)
    await begin_waiting_run(db, thread_id)
    async with db.driver() as driver:
        await driver.execute("UPDATE push_subscriptions SET failures = $1", MAX_FAILURES - 1)
        await driver.execute("UPDATE push_messages SET attempts = $1", MAX_ATTEMPTS - 1)
    service.status = 503
    await dispatcher.look()
    assert (service.refused, await pending_messages(db), await subscription_count(db)) == (1, 0, 1)


async def test_nothing_is_sent_to_a_push_service_that_is_not_allowed_any_more(
    db: Database, service: PushService, dispatcher: PushDispatcher
) -> None:
    thread_id = await new_thread(db)
    await subscribed(db, service, dispatcher, CALLER)
    await begin_waiting_run(db, thread_id)
    turned_off = PushDispatcher(db, PushSender(db, WebhookClient(GuardedClient(allow=LOOPBACK)), hosts=[]))
    turned_off.ahead = MINUTE
    await turned_off.look()
    assert (service.received, await pending_messages(db), await subscription_count(db)) == ([], 0, 1)


async def test_a_run_that_waits_does_not_supersede_another_one(
    db: Database, service: PushService, dispatcher: PushDispatcher
) -> None:
    thread_id = await new_thread(db)
    await subscribed(db, service, dispatcher, CALLER)
    first = await begin_waiting_run(db, thread_id)
    async with db.driver() as driver:
        await driver.execute(
            "INSERT INTO push_messages (seq, subscription_id, thread_id, run_id, kind, due_at, created_at)"
            " SELECT nextval('push_messages_seq'), subscription_id, thread_id, $2, kind, due_at, created_at"
            " FROM push_messages WHERE run_id = $1", first.run_id, ids.new()
        )  # fmt: skip
    await dispatcher.look()
    assert len(service.received) == 1, "the other run is gone"
    assert await pending_messages(db) == 0


async def test_subscriptions_are_confirmed_bounded_and_ended_by_their_person(
    db: Database, service: PushService, dispatcher: PushDispatcher
) -> None:
    await new_thread(db)
    first = await subscribed(db, service, dispatcher, CALLER)
    again = await push_subscriptions.subscribe(db, CALLER, first.stored(answers=True))
    assert (await subscription_count(db), again.answers) == (1, True)
    for _ in range(MAX_SUBSCRIPTIONS):
        await subscribed(db, service, dispatcher, CALLER)
    assert await subscription_count(db) == MAX_SUBSCRIPTIONS
    with pytest.raises(NotFound):
        await push_subscriptions.unsubscribe(db, CALLER, again.id)
    confirmed = await push_subscriptions.subscribe(db, CALLER, first.stored())
    stranger = Caller(anon_key_hash=key_hash("s" * 40))
    with pytest.raises(NotFound, match="opens no thread"):
        await push_subscriptions.subscribe(db, stranger, first.stored())
    with pytest.raises(NotFound):
        await push_subscriptions.unsubscribe(db, stranger, confirmed.id)
    await push_subscriptions.unsubscribe(db, CALLER, confirmed.id)
    assert await subscription_count(db) == MAX_SUBSCRIPTIONS - 1


async def test_a_server_subscribes_a_browser_and_notifies_it(
    postgres_url: str, template: str, service: PushService
) -> None:
    env = {"KHALA_PUSH_HOSTS": "127.0.0.1", "KHALA_FETCH_ALLOW": "127.0.0.0/8"}
    async with shared(postgres_url, template, with_executor=False, **env) as server:
        keyed = {"X-Anon-Key": KEY}
        key = (await server.http.get("/api/me/push", headers=keyed)).json()["publicKey"]
        assert key == (await server.http.get("/api/me/push", headers=keyed)).json()["publicKey"]
        store = Database(server.database_url)
        thread_id = await new_thread(store)
        browser = service.browser(key)
        for changed, path in (
            ({"endpoint": "https://example.org/x"}, "endpoint"),
            ({"keys": browser.body["keys"] | {"auth": "AAAA"}}, "keys.auth"),
            ({"keys": browser.body["keys"] | {"p256dh": "BA" + "A" * 85}}, "keys.p256dh"),
        ):
            refused = await server.http.put("/api/me/push/subscriptions", json=browser.body | changed, headers=keyed)
            assert (refused.status_code, refused.json()["errors"][0]["path"]) == (400, path), refused.text
        made = await server.http.put("/api/me/push/subscriptions", json=browser.body, headers=keyed)
        assert made.status_code == 200, made.text
        await begin_waiting_run(store, thread_id)
        (received,) = await service.wait_for(1)
        assert received.message["threadId"] == str(thread_id)
        ended = await server.http.delete(f"/api/me/push/subscriptions/{made.json()['id']}", headers=keyed)
        assert ended.status_code == 204
        await store.close()


async def test_the_end_of_a_plan_is_not_told_to_the_person_who_leaves_out_its_last_step(
    db: Database, service: PushService, dispatcher: PushDispatcher
) -> None:
    owner, editor = await person(db, "Owner"), await person(db, "Editor")
    thread_id = await owned_thread(db, owner)
    await sharing.set_role(db, thread_id, editor.id, "editor", owner.caller)
    await sharing.join(db, thread_id, editor.id, editor.caller)
    await subscribed(db, service, dispatcher, owner.caller, answers=True)
    for by, told in ((owner, 0), (editor, 1)):
        plan_id = await started_plan(db, thread_id, owner.caller, steps="a")
        await let_plans_take(db, 40)
        await plans.command(db, plan_id, by.caller, SkipStep(step_id="a"))
        await drive(db, plan_id)
        assert await pending_messages(db) == told
