"""What must be true whatever happens, each with a name and the ways in which it was not."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tests.chaos import stored
from tests.chaos.stored import Stored
from tests.chaos.users import Refused, User
from tests.chaos.watchers import Watcher, cards_of
from tests.chaos.world import World
from tests.support.agents import PECULIAR
from tests.support.client import text_of
from tests.support.lines import objects


class Verdict(msgspec.Struct, frozen=True):
    """Whether a promise was kept: `problems` are the ways in which it was not, of `looked` things."""

    promise: str
    looked: int
    problems: list[str]


async def verdicts(world: World, users: Sequence[User], failures: Sequence[str]) -> list[Verdict]:
    """Look at everything; the world has come to rest. `failures` is what went wrong on the way to there."""
    async with world.connection() as connection:
        found = await Stored.read(connection)
    views = {user.name: await _read(user) for user in users}
    code, said = await world.verify()
    watchers = [watcher for user in users for watcher in user.watchers]
    acknowledged = [one for user in users if not user.unsure for one in user.acknowledged]
    productions = world.model.productions
    return [
        Verdict("what was acknowledged is there", len(acknowledged), list(_acknowledged(found, users))),
        Verdict("every answer is what the model said, once", len(productions), list(stored.texts(found, productions))),
        Verdict("no tool that is not idempotent acts twice", len(objects(world.journal)), list(_effects(world, found))),
        Verdict("every observer's view is the thread", len(watchers), list(_views(users, views))),
        Verdict("nobody saw what can't be", sum(one.connects for one in watchers), list(_seen(users))),
        Verdict("revisions have no gaps", len(found.revisions), list(stored.revisions(found))),
        Verdict("what has ended stays ended", len(found.run_log), list(stored.terminal(found))),
        Verdict("a lease is one executor's", len(found.part_log), list(stored.leases(found, _names(world)))),
        Verdict("khala verify finds no difference", len(found.runs), [] if code == 0 else [said]),
        Verdict("all comes to rest in time", len(found.runs), list(failures)),
        Verdict("every failure has a name", len(world.members), list(_crashes(world))),
    ]


async def _read(user: User) -> dict[str, Any] | None:
    try:
        return await user.snapshot()
    except Refused:
        return None


def _acknowledged(found: Stored, users: Sequence[User]) -> Iterator[str]:
    messages = {str(row["id"]): row for row in found.messages}
    runs = {str(row["id"]): row for row in found.runs}
    for user in users:
        for one in () if user.unsure else user.acknowledged:
            question, answer = (messages.get(one.ids[name]) for name in ("userMessageId", "assistantMessageId"))
            run = runs.get(one.ids["runId"])
            if question is None or answer is None or run is None:
                yield f"{user.name}: {one.ids} was acknowledged and is lost"
            elif text_of({"content": json.loads(question["content"])}) != one.text:
                yield f"{user.name}: message {one.ids['userMessageId']} has another text"
            elif (str(run["message_id"]), str(run["user_message_id"])) != (str(answer["id"]), str(question["id"])):
                yield f"{user.name}: run {one.ids['runId']} is of other messages"


def _effects(world: World, found: Stored) -> Iterator[str]:
    happened = objects(world.journal)
    did = Counter((one["tool"], one["key"]) for one in happened if one["event"] == "did")
    numbers = Counter(one["n"] for one in happened if one["event"] == "did")
    for number, count in numbers.items():
        if count > 1:
            yield f"the call with n={number} acted {count} times"
    for (tool, key), count in did.items():
        if count > 1:
            yield f"{tool} acted {count} times for {key}"
    for run_id, parts in found.parts.items():
        results = Counter(about["toolCallId"] for kind, about in parts if kind == "tool-result")
        calls = {about["toolCallId"]: about for kind, about in parts if kind == "tool-call"}
        yield from (f"run {run_id} has {count} results of {key}" for key, count in results.items() if count > 1)
        for kind, about in parts:
            if kind == "tool-result" and about["ok"]:
                tool = calls[about["toolCallId"]]["tool"].removeprefix(PECULIAR)
                if did[tool, about["toolCallId"]] != 1:
                    yield f"run {run_id} says that {tool} {about['toolCallId']} went well, and it did not act"


def _views(users: Sequence[User], views: dict[str, dict[str, Any] | None]) -> Iterator[str]:
    for user in users:
        if (thread := views[user.name]) is None:
            yield f"{user.name} can't read the thread"
        else:
            yield from views_of(user, thread)


def views_of(user: User, thread: dict[str, Any]) -> Iterator[str]:
    """In what the user's observers differ from the thread."""
    for watcher in user.watchers:
        yield from (f"{watcher.name} {problem}" for problem in _view(watcher, thread))


def _view(watcher: Watcher, thread: dict[str, Any]) -> Iterator[str]:
    seen = watcher.seen
    if seen.revision != thread["revision"]:
        yield f"is at revision {seen.revision}, and the thread is at {thread['revision']}"
    for message in thread["messages"]:
        head = seen.messages.get(message["id"])
        if head is None:
            yield f"has not seen message {message['id']}"
        elif head["status"] != message["status"]:
            yield f"takes message {message['id']} for {head['status']}, and it is {message['status']}"
        elif seen.text(message["id"]) != text_of(message):
            yield f"has another text of message {message['id']}"
        elif seen.cards.get(message["id"], {}) != cards_of(message):
            yield f"has other cards of message {message['id']}: {seen.cards.get(message['id'])}, {cards_of(message)}"
    for message_id in seen.messages.keys() - {message["id"] for message in thread["messages"]}:
        if not thread["hasMore"]:
            yield f"has seen message {message_id}, which is not there"


def _seen(users: Sequence[User]) -> Iterator[str]:
    for user in users:
        yield from (f"{user.name}: {wrong}" for wrong in user.wrong)
        for watcher in user.watchers:
            yield from (f"{watcher.name}: {wrong}" for wrong in watcher.wrong)


def _names(world: World) -> Any:
    links = [member.database for member in world.members.values()]
    return lambda port: set().union(*(link.names.get(port, set()) for link in links))


def _crashes(world: World) -> Iterator[str]:
    for member in world.members.values():
        crashes = member.process.crashes()
        yield from (f"{member.name}: {line[:600]}" for line in crashes[:5])
        if len(crashes) > 5:
            yield f"{member.name}: and {len(crashes) - 5} more such lines"
        yield from (f"{member.name} ended by itself with code {code}" for code in member.ended_by_itself)
