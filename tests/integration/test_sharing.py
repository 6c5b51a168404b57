"""Sharing a live thread: with members, by links and publicly; and the end of sharing."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import msgspec
import pytest

from khala.domain.access import key_hash
from khala.store.postgres.database import Database
from tests.support.callers import Person, expire_link, owned_thread, person
from tests.support.in_process import InProcessServer, khala
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

server = server_fixture(KHALA_PUBLIC_THREADS="1")


class SharedThread(msgspec.Struct, frozen=True):
    """A thread of an owner, over REST."""

    http: httpx.AsyncClient
    owner: Person
    id: UUID

    async def ask(self, method: str, path: str = "", who: dict[str, str] | None = None, body: Any = None) -> Any:
        """The response to a request about the thread, by its owner unless `who` names somebody else."""
        headers = self.owner.headers if who is None else who
        return await self.http.request(method, f"/api/threads/{self.id}{path}", json=body, headers=headers)

    async def link(self, role: str = "viewer", **more: Any) -> dict[str, Any]:
        answer = await self.ask("POST", "/links", body={"role": role} | more)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    async def invite(self, who: Person, role: str) -> dict[str, Any]:
        """Invite the user, or change the role of a member."""
        answer = await self.ask("PUT", f"/members/{who.id}", body={"role": role})
        assert (answer.status_code, answer.json()["role"]) == (200, role), answer.text
        return dict(answer.json())

    async def give(self, who: Person, role: str) -> None:
        """Give the user this role; a user who is no member yet accepts the invitation."""
        if (await self.invite(who, role))["status"] == "invited":
            assert (await self.ask("POST", "/join", who.headers)).json()["status"] == "member"

    async def role(self, who: dict[str, str]) -> str | None:
        """The caller's role in the thread; None without access."""
        answer = await self.ask("GET", "/access", who)
        assert answer.status_code in (200, 403)
        return answer.json()["role"] if answer.status_code == 200 else None

    async def members(self) -> list[tuple[str, str]]:
        return [(item["userId"], item["role"]) for item in (await self.ask("GET", "/members")).json()["items"]]


async def shared_thread(server: InProcessServer, store: Database) -> SharedThread:
    owner = await person(store, "Tassadar")
    return SharedThread(server.http, owner, await owned_thread(store, owner, welcome="Hello."))


async def listed(server: InProcessServer, who: Person) -> list[str]:
    items = (await server.http.get("/api/threads", headers=who.headers)).json()["items"]
    return [item["id"] for item in items]


def key(link: dict[str, Any]) -> dict[str, str]:
    return {"X-Share-Key": link["shareKey"]}


async def test_a_member_has_the_rights_of_the_role_until_it_is_removed(
    server: InProcessServer, store: Database
) -> None:
    here, who = await shared_thread(server, store), await person(store, "Zeratul")
    doings = [("GET", "", None), ("PATCH", "", {"title": "Aiur"}), ("GET", "/links", None)]
    for role, allowed in (("viewer", 1), ("editor", 2), ("owner", 3), ("viewer", 1)):
        await here.give(who, role)
        assert await here.role(who.headers) == role
        statuses = [(await here.ask(method, path, who.headers, body)).status_code for method, path, body in doings]
        assert statuses == [200] * allowed + [403] * (3 - allowed)
    assert await here.members() == [(str(here.owner.id), "owner"), (str(who.id), "viewer")]
    assert (await here.ask("DELETE", f"/members/{who.id}")).status_code == 204
    assert await here.role(who.headers) is None
    assert (await here.ask("DELETE", f"/members/{who.id}")).status_code == 404


async def test_the_thread_list_has_shared_threads_until_access_ends(server: InProcessServer, store: Database) -> None:
    here, who = await shared_thread(server, store), await person(store)
    own = str(await owned_thread(store, who))
    await here.give(who, "viewer")
    assert sorted(await listed(server, who)) == sorted([own, str(here.id)])
    await here.ask("DELETE", f"/members/{who.id}")
    assert await listed(server, who) == [own]
    await here.give(who, "editor")
    assert str(here.id) in await listed(server, who)
    await here.ask("DELETE")
    assert await listed(server, who) == [own]


async def test_the_first_owner_cant_be_demoted_or_removed_by_anybody(server: InProcessServer, store: Database) -> None:
    here, second = await shared_thread(server, store), await person(store)
    await here.give(second, "owner")
    for who in (here.owner.headers, second.headers):
        for role in ("viewer", "editor", "owner"):
            assert (await here.ask("PUT", f"/members/{here.owner.id}", who, {"role": role})).status_code == 409
        assert (await here.ask("DELETE", f"/members/{here.owner.id}", who)).status_code == 409
    assert await here.role(here.owner.headers) == "owner"
    assert (await here.ask("PUT", f"/members/{second.id}", second.headers, {"role": "viewer"})).status_code == 200
    assert await here.role(second.headers) == "viewer"


async def test_a_member_leaves_without_affecting_the_others(server: InProcessServer, store: Database) -> None:
    here, who, other = await shared_thread(server, store), await person(store), await person(store)
    await here.give(who, "viewer")
    await here.give(other, "viewer")
    assert (await here.ask("DELETE", f"/members/{other.id}", who.headers)).status_code == 403
    assert (await here.ask("DELETE", f"/members/{who.id}", who.headers)).status_code == 204
    assert await here.role(who.headers) is None
    assert await here.role(other.headers) == "viewer"
    assert str(here.id) not in await listed(server, who)


async def test_unknown_users_and_roles_are_refused(server: InProcessServer, store: Database) -> None:
    here, who = await shared_thread(server, store), await person(store)
    assert (await here.ask("PUT", f"/members/{uuid4()}", body={"role": "viewer"})).status_code == 404
    for bad in ({"role": "admin"}, {}, {"role": None}):
        assert (await here.ask("PUT", f"/members/{who.id}", body=bad)).status_code == 400
    for bad in ({"role": "owner"}, {}, {"role": "viewer", "expiresAt": "2020-01-01T00:00:00Z"},
                {"role": "viewer", "expiresAt": "2030-01-01T00:00:00"}):  # fmt: skip
        assert (await here.ask("POST", "/links", body=bad)).status_code == 400
    assert await here.members() == [(str(here.owner.id), "owner")]


async def test_a_link_grants_its_role_to_any_holder_until_it_is_revoked(
    server: InProcessServer, store: Database
) -> None:
    here, who = await shared_thread(server, store), await person(store)
    viewer, editor = await here.link("viewer"), await here.link("editor")
    assert viewer["url"] == f"{server.url}/t/{here.id}#share={viewer['shareKey']}"
    for link, role in ((viewer, "viewer"), (editor, "editor")):
        assert await here.role(key(link)) == role
        assert await here.role(key(link) | who.headers) == role
    assert await here.role(key(viewer) | here.owner.headers) == "owner"
    assert (await here.ask("PATCH", "", key(viewer), {"title": "x"})).status_code == 403
    assert (await here.ask("PATCH", "", key(editor), {"title": "x"})).status_code == 200
    for path, body in (("/links", {"role": "viewer"}), ("/reset", None)):
        assert (await here.ask("POST", path, key(editor), body)).status_code == 403
    assert (await here.ask("DELETE", f"/links/{viewer['id']}")).status_code == 204
    assert await here.role(key(viewer)) is None
    assert await here.role(key(editor)) == "editor"
    assert [item["id"] for item in (await here.ask("GET", "/links")).json()["items"]] == [editor["id"]]
    assert (await here.ask("DELETE", f"/links/{viewer['id']}")).status_code == 404


async def test_a_link_grants_no_access_to_another_thread_whose_owner_cannot_revoke_it(
    server: InProcessServer, store: Database
) -> None:
    here, there = await shared_thread(server, store), await shared_thread(server, store)
    link = await here.link("editor")
    await there.link("editor")
    assert await there.role(key(link)) is None
    assert (await there.ask("DELETE", f"/links/{link['id']}")).status_code == 404
    assert (await here.ask("DELETE", f"/links/{link['id']}", there.owner.headers)).status_code == 403
    assert await here.role(key(link)) == "editor"


async def test_an_expired_link_grants_no_access_and_is_not_listed(server: InProcessServer, store: Database) -> None:
    here = await shared_thread(server, store)
    ends = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    link = await here.link(expiresAt=ends)
    access = (await here.ask("GET", "/access", key(link))).json()
    assert datetime.fromisoformat(access["expiresAt"]) == datetime.fromisoformat(ends)
    await expire_link(store, UUID(link["id"]))
    assert await here.role(key(link)) is None
    assert (await here.ask("GET", "/links")).json()["items"] == []
    who = await person(store)
    assert (await here.ask("POST", "/join", key(link) | who.headers)).status_code == 403


async def test_private_revokes_all_links_for_good_and_keeps_members(server: InProcessServer, store: Database) -> None:
    here, who = await shared_thread(server, store), await person(store)
    links = [await here.link(role) for role in ("viewer", "editor")]
    await here.give(who, "viewer")
    assert (await here.ask("GET")).json()["thread"]["visibility"] == "link"
    assert (await here.ask("PATCH", body={"visibility": "private"})).json()["visibility"] == "private"
    assert (await here.ask("PATCH", body={"visibility": "link"})).json()["visibility"] == "link"
    assert [await here.role(key(link)) for link in links] == [None, None]
    assert (await here.ask("GET", "/links")).json()["items"] == []
    assert await here.role(who.headers) == "viewer"


async def test_a_public_thread_is_readable_by_all_and_writable_only_by_its_editors(
    server: InProcessServer, store: Database
) -> None:
    here, who = await shared_thread(server, store), await person(store)
    assert (await here.ask("PATCH", body={"visibility": "public"})).status_code == 200
    for requester in ({}, who.headers, {"X-Anon-Key": "x" * 40}):
        assert await here.role(requester) == "viewer"
        assert (await here.ask("POST", "/send", requester, {"text": "?"})).status_code == 403
    assert await listed(server, who) == []
    await here.ask("PATCH", body={"visibility": "private"})
    assert await here.role({}) is None


async def test_threads_can_be_made_public_only_if_the_setting_allows_it(
    server: InProcessServer, store: Database
) -> None:
    here = await shared_thread(server, store)
    async with khala(server.database_url, with_executor=False) as without:
        path, body = f"/api/threads/{here.id}", {"visibility": "public"}
        answer = await without.http.patch(path, json=body, headers=here.owner.headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert await here.role({}) is None


async def test_a_member_who_joined_by_a_link_stays_when_it_is_revoked(server: InProcessServer, store: Database) -> None:
    here, who = await shared_thread(server, store), await person(store, "Zeratul")
    link = await here.link("editor")
    assert (await here.ask("POST", "/join", key(link))).status_code == 401
    joined = await here.ask("POST", "/join", key(link) | who.headers)
    assert (joined.status_code, joined.json()) == (
        200, {"userId": str(who.id), "name": "Zeratul", "role": "editor", "status": "member"},
    )  # fmt: skip
    await here.ask("DELETE", f"/links/{link['id']}")
    assert await here.role(key(link)) is None
    assert await here.role(who.headers) == "editor"
    assert await listed(server, who) == [str(here.id)]


async def test_joining_raises_a_role_and_never_lowers_it(server: InProcessServer, store: Database) -> None:
    here, who = await shared_thread(server, store), await person(store)
    viewer, editor = await here.link("viewer"), await here.link("editor")
    for link, role in ((viewer, "viewer"), (editor, "editor"), (viewer, "editor")):
        assert (await here.ask("POST", "/join", key(link) | who.headers)).json()["role"] == role
    assert (await here.ask("POST", "/join", key(viewer) | here.owner.headers)).json()["role"] == "owner"
    assert await here.members() == [(str(here.owner.id), "owner"), (str(who.id), "editor")]


async def test_joining_without_a_links_key_is_refused_even_for_a_public_thread(
    server: InProcessServer, store: Database
) -> None:
    here, who = await shared_thread(server, store), await person(store)
    revoked = await here.link("editor")
    await here.ask("DELETE", f"/links/{revoked['id']}")
    await here.ask("PATCH", body={"visibility": "public"})
    for keys in ({}, {"X-Share-Key": "x" * 40}, key(revoked)):
        assert (await here.ask("POST", "/join", keys | who.headers)).status_code == 403
    await here.ask("PATCH", body={"visibility": "private"})
    assert await here.role(who.headers) is None


async def test_a_thread_has_at_most_fifty_valid_links(server: InProcessServer, store: Database) -> None:
    here = await shared_thread(server, store)
    links = [await here.link() for _ in range(50)]
    refused = await here.ask("POST", "/links", body={"role": "viewer"})
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    await here.ask("DELETE", f"/links/{links[0]['id']}")
    await here.link()
    assert (await here.ask("POST", "/links", body={"role": "viewer"})).status_code == 409
    await expire_link(store, UUID(links[1]["id"]))
    await here.link()


async def test_a_links_key_is_shown_once_and_stored_as_a_hash(server: InProcessServer, store: Database) -> None:
    here = await shared_thread(server, store)
    link = await here.link("editor")
    for path in ("", "/links", "/members", "/access"):
        assert link["shareKey"] not in (await here.ask("GET", path)).text
    async with store.driver() as driver:
        row = await driver.fetchrow("SELECT share_links::text AS whole, * FROM share_links WHERE id = $1", link["id"])
    assert row["key_hash"] == key_hash(link["shareKey"])
    assert link["shareKey"] not in row["whole"]


async def test_messages_have_their_author_and_the_authors_name_at_that_time(
    server: InProcessServer, store: Database
) -> None:
    here, who = await shared_thread(server, store), await person(store, "Zeratul")
    await here.give(who, "editor")
    links = [await here.link("editor") for _ in range(2)]
    requesters = [here.owner.headers, who.headers, key(links[0]), key(links[1]), key(links[0])]
    for requester in requesters:
        body = {"text": "/words=1", "options": {"ifBusy": "queue"}}
        assert (await here.ask("POST", "/send", requester, body)).status_code == 202
    await server.http.patch("/api/me", json={"name": "Dark Templar"}, headers=who.headers)
    messages = [message for message in (await here.ask("GET")).json()["messages"] if message["role"] == "user"]
    assert [message.get("authorName") for message in messages] == ["Tassadar", "Zeratul", None, None, None]
    authors = [message["authorId"] for message in messages]
    assert authors[:2] == [str(here.owner.id), str(who.id)]
    assert authors[2] == authors[4] != authors[3]
    assert len(set(authors)) == 4
    assert not any(link["shareKey"] in str(messages) or link["id"] in authors for link in links)


async def test_a_read_mark_is_stored_for_the_account_and_never_goes_back(
    server: InProcessServer, store: Database
) -> None:
    here, who = await shared_thread(server, store), await person(store)
    await here.give(who, "viewer")
    for revision, kept in ((2, 2), (1, 2), (10**6, None)):
        assert (await here.ask("PUT", "/read", who.headers, {"revision": revision})).status_code == 204
        async with store.driver() as driver:
            row = await driver.fetchrow(
                "SELECT read_revision, threads.revision FROM listings JOIN threads ON threads.id = thread_id"
                " WHERE thread_id = $1 AND user_id = $2", here.id, who.id,
            )  # fmt: skip
        assert row["read_revision"] >= (kept or row["revision"])
        assert row["read_revision"] <= row["revision"]
