"""Invitations: a user becomes a member only with consent, and cannot be flooded with invitations."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
import msgspec
import pytest

from khala.domain.invitations import MAX_FROM_ONE_SENDER, MAX_MEMBERS, MAX_RECEIVED, MAX_SENT_PER_DAY
from khala.store.accounts import accounts
from khala.store.operations import retention
from khala.store.postgres.database import Database, driver_of
from khala.store.sharing import invitations, sharing
from khala.store.threads import threads
from tests.support.callers import Person, owned_thread, person
from tests.support.frames import Socket, socket
from tests.support.in_process import InProcessServer
from tests.support.people import make_member
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

server = server_fixture(with_executor=False)


class InvitingThread(msgspec.Struct, frozen=True):
    """A thread, its owner, and a user who can be invited."""

    http: httpx.AsyncClient
    owner: Person
    guest: Person
    id: UUID

    async def ask(self, method: str, path: str, who: dict[str, str], body: Any = None) -> httpx.Response:
        return await self.http.request(method, f"/api/threads/{self.id}{path}", json=body, headers=who)

    async def invite(self, role: str = "editor", **by: Person) -> httpx.Response:
        who = by.get("by", self.owner)
        return await self.ask("PUT", f"/members/{self.guest.id}", who.headers, {"role": role})

    async def answer(self, *, accept: bool) -> httpx.Response:
        if accept:
            return await self.ask("POST", "/join", self.guest.headers)
        return await self.ask("DELETE", f"/members/{self.guest.id}", self.guest.headers)

    async def withdraw(self) -> httpx.Response:
        return await self.ask("DELETE", f"/members/{self.guest.id}", self.owner.headers)

    async def members(self) -> list[tuple[str, str, str]]:
        found = (await self.ask("GET", "/members", self.owner.headers)).raise_for_status().json()["items"]
        return [(result["userId"], result["role"], result["status"]) for result in found]

    async def role(self) -> str | None:
        found = await self.ask("GET", "/access", self.guest.headers)
        return str(found.json()["role"]) if found.status_code == 200 else None

    @property
    def first(self) -> tuple[str, str, str]:
        """The first owner's entry in the list of members."""
        return str(self.owner.id), "owner", "member"


async def inviting_thread(
    server: InProcessServer, store: Database, guest: Person | None = None, owner: Person | None = None
) -> InvitingThread:
    owner, guest = owner or await person(store, "Tassadar"), guest or await person(store, "Zeratul")
    return InvitingThread(server.http, owner, guest, await owned_thread(store, owner, welcome="Hello."))


async def invitations_of(server: InProcessServer, who: Person) -> list[dict[str, Any]]:
    found = await server.http.get("/api/me/invitations", headers=who.headers)
    return list(found.raise_for_status().json()["items"])


async def listed_threads(server: InProcessServer, who: Person) -> list[str]:
    found = await server.http.get("/api/threads", headers=who.headers)
    return [item["id"] for item in found.raise_for_status().json()["items"]]


@pytest.mark.parametrize("role", ["viewer", "editor", "owner"])
async def test_an_invited_user_can_only_read_until_they_accept(
    server: InProcessServer, store: Database, role: str
) -> None:
    here = await inviting_thread(server, store)
    made = await here.invite(role)
    member = {"userId": str(here.guest.id), "name": "Zeratul", "role": role}
    assert (made.status_code, made.json()) == (200, member | {"status": "invited"})
    assert await here.members() == [here.first, (str(here.guest.id), role, "invited")]
    assert (await here.role(), await listed_threads(server, here.guest)) == ("viewer", [])
    assert (await here.ask("GET", "", here.guest.headers)).json()["messages"][0]["role"] == "assistant"
    for method, path, body in (
        ("POST", "/send", {"text": "?"}),
        ("PATCH", "", {"title": "Mine"}),
        ("DELETE", "", None),
    ):
        assert (await here.ask(method, path, here.guest.headers, body)).status_code == 403
    accepted = await here.answer(accept=True)
    assert (accepted.status_code, accepted.json()) == (200, member | {"status": "member"})
    assert await here.members() == [here.first, (str(here.guest.id), role, "member")]
    assert (await here.role(), await listed_threads(server, here.guest)) == (role, [str(here.id)])
    assert (await here.answer(accept=True)).json() == member | {"status": "member"}
    assert await invitations_of(server, here.guest) == []


async def test_an_invitation_names_its_thread_sender_and_role(server: InProcessServer, store: Database) -> None:
    here = await inviting_thread(server, store)
    await here.ask("PATCH", "", here.owner.headers, {"title": "Aiur"})
    await here.invite("editor")
    (invitation,) = await invitations_of(server, here.guest)
    assert invitation.pop("createdAt")
    expected = {"threadId": str(here.id), "title": "Aiur", "inviterId": str(here.owner.id), "invitedBy": "Tassadar"}
    assert invitation == expected | {"role": "editor"}
    assert await invitations_of(server, here.owner) == []


async def test_a_members_role_changes_at_once_and_an_invitations_before_it_is_accepted(
    server: InProcessServer, store: Database
) -> None:
    here = await inviting_thread(server, store)
    for role in ("editor", "viewer", "owner", "owner"):
        assert (await here.invite(role)).json()["status"] == "invited"
    assert [item["role"] for item in await invitations_of(server, here.guest)] == ["owner"]
    await here.answer(accept=True)
    assert (await here.invite("viewer")).json()["status"] == "member"
    assert await here.role() == "viewer"


async def test_declining_or_withdrawing_ends_read_access_at_once(server: InProcessServer, store: Database) -> None:
    here, there = await inviting_thread(server, store), await inviting_thread(server, store)
    for place, ends in ((here, here.answer(accept=False)), (there, there.withdraw())):
        await place.invite("viewer")
        async with socket(server, additional_headers=place.guest.headers) as feed:
            await feed.send({"type": "subscribe", "threadId": str(place.id)})
            assert (await feed.next())["type"] == "snapshot"
            assert (await ends).status_code == 204
            assert await feed.next() == {"type": "gone", "threadId": str(place.id), "code": "forbidden"}
        assert (await place.members(), await place.role()) == ([place.first], None)
        assert (await place.answer(accept=True)).status_code == 403
        assert await invitations_of(server, place.guest) == []
        assert (await place.withdraw()).status_code == 404


async def test_an_invited_user_cannot_withdraw_another_users_invitation(
    server: InProcessServer, store: Database
) -> None:
    here = await inviting_thread(server, store)
    other = msgspec.structs.replace(here, guest=await person(store))
    await here.invite("owner")
    await other.invite("viewer")
    gone = await here.ask("DELETE", f"/members/{other.guest.id}", here.guest.headers)
    assert (gone.status_code, await other.role()) == (403, "viewer")


@pytest.mark.parametrize(("link", "invited", "comes_to"), [
    ("editor", "viewer", "editor"), ("viewer", "editor", "editor"), ("viewer", "owner", "owner"),
])  # fmt: skip
async def test_joining_with_a_link_and_an_invitation_gives_the_higher_role(
    server: InProcessServer, store: Database, link: str, invited: str, comes_to: str
) -> None:
    here = await inviting_thread(server, store)
    key = (await here.ask("POST", "/links", here.owner.headers, {"role": link})).json()["shareKey"]
    await here.invite(invited)
    joined = await here.ask("POST", "/join", here.guest.headers | {"X-Share-Key": key})
    assert (joined.json()["role"], joined.json()["status"]) == (comes_to, "member")
    assert await here.members() == [here.first, (str(here.guest.id), comes_to, "member")]
    assert await invitations_of(server, here.guest) == []


async def test_a_user_who_declined_is_not_invited_again_to_the_thread_or_by_the_same_sender(
    server: InProcessServer, store: Database
) -> None:
    here = await inviting_thread(server, store)
    elsewhere = await inviting_thread(server, store, here.guest, here.owner)
    second, stranger = await person(store), await inviting_thread(server, store, here.guest)
    await make_member(store, here.id, second.id, "owner", here.owner.caller)
    await here.invite()
    assert (await here.answer(accept=False)).status_code == 204
    for again in (here.invite(), here.invite(by=second), elsewhere.invite()):
        refused = await again
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
        assert "has declined" in refused.json()["detail"]
    assert (await stranger.invite()).status_code == 200
    # A link is not an invitation: a user who has declined can still join by it.
    key = (await here.ask("POST", "/links", here.owner.headers, {"role": "viewer"})).json()["shareKey"]
    assert (await here.ask("POST", "/join", here.guest.headers | {"X-Share-Key": key})).status_code == 200
    await here.withdraw()
    async with store.driver() as driver:
        await driver.execute("UPDATE invitations SET declined_at = declined_at - interval '30 days'")
    assert (await elsewhere.invite()).status_code == 200


async def test_repeated_invitations_and_withdrawals_are_refused(server: InProcessServer, store: Database) -> None:
    here = await inviting_thread(server, store)
    for _ in range(5):
        assert (await here.invite()).status_code == 200
        assert (await here.invite("viewer")).status_code == 200  # a change of the role is not counted
        assert (await here.withdraw()).status_code == 204
    refused = await here.invite()
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    assert int(refused.headers["Retry-After"]) > 0
    other = msgspec.structs.replace(here, guest=await person(store))
    assert (await other.invite()).status_code == 200


async def test_a_sender_has_a_daily_limit_of_invitations(server: InProcessServer, store: Database) -> None:
    here = await inviting_thread(server, store)
    for _ in range(MAX_SENT_PER_DAY - 1):
        async with store.transaction() as connection:
            await threads.lock(connection, here.id)
            await invitations.count_sent(await driver_of(connection), (await person(store)).id, here.owner.caller)
    assert (await here.invite()).status_code == 200
    other = msgspec.structs.replace(here, guest=await person(store))
    assert (await other.invite()).status_code == 429
    # A refused invitation is neither stored nor shown to the user.
    assert await invitations_of(server, other.guest) == []


async def test_a_users_open_invitations_are_limited_by_sender_and_in_total(
    server: InProcessServer, store: Database
) -> None:
    guest, owner = await person(store), await person(store)
    halls = [await inviting_thread(server, store, guest, owner) for _ in range(MAX_FROM_ONE_SENDER)]
    for here in halls:
        assert (await here.invite()).status_code == 200
    async with store.driver() as driver:  # as on another day
        await driver.execute("DELETE FROM budgets WHERE scope = $1", invitations.SENT_SCOPE)
    one_more = await inviting_thread(server, store, guest, owner)
    assert "open invitations from you" in (await one_more.invite()).json()["detail"]
    await halls[0].answer(accept=True)
    assert (await one_more.invite()).status_code == 200
    async with store.driver() as driver:
        await driver.execute(
            """
            WITH made AS (INSERT INTO threads (id) SELECT gen_random_uuid() FROM generate_series(1, $2) RETURNING id)
            INSERT INTO invitations (thread_id, user_id, role, invited_by)
            SELECT id, $1, 'viewer', gen_random_uuid() FROM made
            """,
            guest.id, MAX_RECEIVED - MAX_FROM_ONE_SENDER - 1,
        )  # fmt: skip
    last, over = await inviting_thread(server, store, guest), await inviting_thread(server, store, guest)
    assert (await last.invite()).status_code == 200
    refused = await over.invite()
    assert (refused.status_code, "too many open invitations" in refused.json()["detail"]) == (409, True)
    assert len(await invitations_of(server, guest)) == MAX_RECEIVED
    await last.answer(accept=False)
    assert (await over.invite()).status_code == 200


async def test_all_senders_without_an_account_share_one_limit(server: InProcessServer, store: Database) -> None:
    guest = await person(store)

    async def invite() -> int:
        thread = await server.thread()
        path, body = f"/api/threads/{thread.id}/members/{guest.id}", {"role": "viewer"}
        return (await server.http.put(path, json=body, headers=thread.headers)).status_code

    assert [await invite() for _ in range(6)] == [200] * 5 + [429]
    (invitation, *_) = await invitations_of(server, guest)
    assert not {"inviterId", "invitedBy"} & set(invitation)
    joined = await server.http.post(f"/api/threads/{invitation['threadId']}/join", headers=guest.headers)
    assert joined.json()["status"] == "member"


async def test_invited_users_count_towards_the_member_limit(server: InProcessServer, store: Database) -> None:
    here = await inviting_thread(server, store)
    async with store.driver() as driver:
        await driver.execute(
            """
            WITH made AS (INSERT INTO users (id) SELECT gen_random_uuid() FROM generate_series(1, $2) RETURNING id)
            INSERT INTO invitations (thread_id, user_id, role) SELECT $1, id, 'viewer' FROM made
            """,
            here.id, MAX_MEMBERS - 2,
        )  # fmt: skip
    assert (await here.invite()).status_code == 200
    over = msgspec.structs.replace(here, guest=await person(store))
    refused = await over.invite()
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert (await here.answer(accept=True)).status_code == 200


async def next_account_frame(feed: Socket) -> dict[str, Any]:
    return dict(await feed.until("account"))


async def test_the_account_feed_reports_invitations_and_their_end(server: InProcessServer, store: Database) -> None:
    here = await inviting_thread(server, store)
    there = await inviting_thread(server, store, here.guest)
    async with socket(server, additional_headers=here.guest.headers) as feed:
        await feed.send({"type": "watch"})
        first = await next_account_frame(feed)
        assert (first["threads"], "invitations" in first) == ([], False)
        await here.invite("editor")
        frame = await next_account_frame(feed)
        assert (frame["from"], frame["threads"], frame["removed"]) == (first["revision"], [], [])
        assert frame["invitations"] == await invitations_of(server, here.guest)
        await here.invite("owner")
        assert [item["role"] for item in (await next_account_frame(feed))["invitations"]] == ["owner"]
        await here.withdraw()
        assert (await next_account_frame(feed))["invitations"] == []
        await here.invite("viewer")
        await next_account_frame(feed)
        await there.invite("viewer")
        assert [item["threadId"] for item in (await next_account_frame(feed))["invitations"]] == [
            str(there.id),
            str(here.id),
        ]
        await here.answer(accept=True)
        accepted = await next_account_frame(feed)
        assert [entry["thread"]["id"] for entry in accepted["threads"]] == [str(here.id)]
        assert [item["threadId"] for item in accepted["invitations"]] == [str(there.id)]
        await here.ask("PATCH", "", here.owner.headers, {"title": "Aiur"})
        assert "invitations" not in await next_account_frame(feed)
        async with socket(server, additional_headers=here.guest.headers) as late:
            await late.send({"type": "watch"})
            assert [item["threadId"] for item in (await next_account_frame(late))["invitations"]] == [str(there.id)]
        await there.ask("DELETE", "", there.owner.headers)
        assert (await next_account_frame(feed))["invitations"] == []


async def test_claiming_a_thread_removes_the_users_invitation_to_it(server: InProcessServer, store: Database) -> None:
    thread, who = await server.thread(), await person(store)
    path, body = f"/api/threads/{thread.id}", {"role": "viewer"}
    await server.http.put(f"{path}/members/{who.id}", json=body, headers=thread.headers)
    await server.http.post(f"{path}/claim", json={"anonKey": thread.key}, headers=who.headers)
    assert await invitations_of(server, who) == []
    members = (await server.http.get(f"{path}/members", headers=who.headers)).json()["items"]
    assert [(member["userId"], member["role"], member["status"]) for member in members] == [
        (str(who.id), "owner", "member")
    ]


async def test_a_membership_created_by_the_previous_version_overrides_the_invitation(
    server: InProcessServer, store: Database
) -> None:
    here = await inviting_thread(server, store)
    await here.invite("owner")
    async with store.driver() as driver:
        query = "INSERT INTO memberships (thread_id, user_id, role) VALUES ($1, $2, 'editor')"
        await driver.execute(query, here.id, here.guest.id)
    assert await here.members() == [here.first, (str(here.guest.id), "editor", "member")]
    assert (await here.role(), await invitations_of(server, here.guest)) == ("editor", [])
    assert (await here.withdraw()).status_code == 204
    assert (await here.members(), await here.role()) == ([here.first], None)


async def test_of_deleted_accounts_no_invitation_is_left_and_none_of_their_names(
    server: InProcessServer, store: Database
) -> None:
    here, there = await inviting_thread(server, store), await inviting_thread(server, store)
    second = await person(store, "Second")
    await make_member(store, here.id, second.id, "owner", here.owner.caller)
    await here.invite(by=second)
    await there.invite()
    await accounts.remove(store, second.caller)
    (invitation,) = await invitations_of(server, here.guest)
    assert "invitedBy" not in invitation
    await accounts.remove(store, there.guest.caller)
    assert await there.members() == [there.first]
    await accounts.remove(store, here.owner.caller)
    assert await invitations_of(server, here.guest) == []


async def test_accepting_while_it_is_withdrawn_leaves_no_member(server: InProcessServer, store: Database) -> None:
    for _ in range(5):
        here = await inviting_thread(server, store)
        await here.invite()
        accepted, withdrawn = await asyncio.gather(here.answer(accept=True), here.withdraw())
        # In either order there is no member: a new member is removed, or a withdrawn invitation can't be accepted.
        assert (accepted.status_code, withdrawn.status_code) in ((200, 204), (403, 204))
        assert (await here.members(), await here.role()) == ([here.first], None)


async def test_declined_invitations_are_purged_in_time(server: InProcessServer, store: Database) -> None:
    here, there = await inviting_thread(server, store), await inviting_thread(server, store)
    for place in (here, there):
        await place.invite()
        await place.answer(accept=False)
    long_ago = "UPDATE invitations SET declined_at = now() - interval '31 days' WHERE thread_id = $1"
    async with store.driver() as driver:
        await driver.execute(long_ago, here.id)
    await retention.purge(store, retention.RetentionPolicy(idle=timedelta()))
    async with store.driver() as driver:
        query = "SELECT thread_id FROM invitations WHERE thread_id = ANY($1::uuid[])"
        assert [row["thread_id"] for row in await driver.fetch(query, [here.id, there.id])] == [there.id]


async def test_the_audit_trail_names_invited_users_and_their_responses(
    server: InProcessServer, store: Database
) -> None:
    here, there = await inviting_thread(server, store), await inviting_thread(server, store)
    await here.invite()
    await here.answer(accept=True)
    await there.invite()
    await there.withdraw()
    await sharing.set_role(store, there.id, here.guest.id, "viewer", there.owner.caller)
    await msgspec.structs.replace(there, guest=here.guest).answer(accept=False)

    async def trail(who: Person) -> list[str]:
        found = await server.http.get("/api/me/audit", headers=who.headers)
        return [
            item["action"] for item in found.json()["items"] if item.get("threadId") in (str(here.id), str(there.id))
        ]

    assert await trail(here.guest) == ["invitation_declined", "joined"]
    assert await trail(there.owner) == ["invited", "invitation_withdrawn", "invited"]
