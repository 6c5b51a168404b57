"""Checks the promises that must hold under all faults; each has a name and a list of violations."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tests.chaos import command_checks, database_checks
from tests.chaos.database_checks import DatabaseState
from tests.chaos.deployment import Deployment
from tests.chaos.observers import ThreadObserver, tool_states_of
from tests.chaos.users import UnexpectedResponse, User
from tests.support.agents import PECULIAR
from tests.support.client import text_of
from tests.support.json_lines import objects


class Verdict(msgspec.Struct, frozen=True):
    """The result for one promise: its violations (`problems`), and the number of checked items."""

    promise: str
    checked: int
    problems: list[str]


async def verdicts(deployment: Deployment, users: Sequence[User], failures: Sequence[str]) -> list[Verdict]:
    """Check all promises once the deployment is at rest. `failures` are those of the users and of the wait for rest."""
    async with deployment.connection() as connection:
        state = await DatabaseState.read(connection)
    views = {user.name: await _read(user) for user in users}
    status, output = await deployment.verify()
    observers = [observer for user in users for observer in user.observers]
    acknowledged = [send for user in users if not user.unsure for send in user.acknowledged]
    outputs, journal = deployment.model.outputs, objects(deployment.command_journal)
    return [
        Verdict("acknowledged messages are stored", len(acknowledged), list(_acknowledged(state, users))),
        Verdict(
            "every answer has the model's output exactly once",
            len(outputs),
            list(database_checks.texts(state, outputs)),
        ),
        Verdict("no tool call takes effect twice", len(objects(deployment.journal)), list(_effects(deployment, state))),
        Verdict("every observer's view equals the thread", len(observers), list(_views(users, views))),
        Verdict("no observer saw an impossible state", sum(one.connects for one in observers), list(_observed(users))),
        Verdict("revisions have no gaps", len(state.revisions), list(database_checks.revisions(state))),
        Verdict("plans end once, and repeat no completed step", len(state.plans), list(database_checks.plans(state))),
        Verdict(
            "the output of commands is theirs, and whole", len(journal), list(command_checks.outputs(state, journal))
        ),
        Verdict(
            "no command does a completed step, or takes effect twice",
            len(list(command_checks.completed_steps(state))),
            list(command_checks.effects(state, journal)),
        ),
        Verdict(
            "each step that was completed in a checkout is there once",
            len(users),
            list(command_checks.commits(state, deployment.checkouts)),
        ),
        Verdict(
            "no process of a command is left",
            len(journal),
            list(command_checks.processes(str(deployment.command_journal))),
        ),
        Verdict("ended runs stay ended", len(state.run_log), list(database_checks.terminal(state))),
        Verdict(
            "a lease belongs to one executor",
            len(state.part_log),
            list(database_checks.leases(state, _names(deployment))),
        ),
        Verdict("khala verify finds no difference", len(state.runs), [] if status == 0 else [output]),
        Verdict("the deployment comes to rest in time", len(state.runs), list(failures)),
        Verdict("no log has an unexpected error", len(deployment.members), list(_crashes(deployment))),
    ]


async def _read(user: User) -> dict[str, Any] | None:
    try:
        return await user.snapshot()
    except UnexpectedResponse:
        return None


def _acknowledged(state: DatabaseState, users: Sequence[User]) -> Iterator[str]:
    messages = {str(row["id"]): row for row in state.messages}
    runs = {str(row["id"]): row for row in state.runs}
    for user in users:
        for one in () if user.unsure else user.acknowledged:
            question, answer = (messages.get(one.ids[name]) for name in ("userMessageId", "assistantMessageId"))
            run = runs.get(one.ids["runId"])
            if question is None or answer is None or run is None:
                yield f"{user.name}: {one.ids} was acknowledged and is lost"
            elif text_of({"content": json.loads(question["content"])}) != one.text:
                yield f"{user.name}: message {one.ids['userMessageId']} has another text"
            elif (str(run["message_id"]), str(run["user_message_id"])) != (str(answer["id"]), str(question["id"])):
                yield f"{user.name}: run {one.ids['runId']} belongs to other messages"


def _effects(deployment: Deployment, state: DatabaseState) -> Iterator[str]:
    effects = [event for event in objects(deployment.journal) if event["event"] == "did"]
    did = Counter((effect["tool"], effect["key"]) for effect in effects)
    numbers = Counter(effect["n"] for effect in effects)
    for number, count in numbers.items():
        if count > 1:
            yield f"the call with n={number} took effect {count} times"
    for (tool, key), count in did.items():
        if count > 1:
            yield f"{tool} took effect {count} times for {key}"
    for run_id, parts in state.parts.items():
        results = Counter(data["toolCallId"] for kind, data in parts if kind == "tool-result")
        calls = {data["toolCallId"]: data for kind, data in parts if kind == "tool-call"}
        yield from (f"run {run_id} has {count} results of {key}" for key, count in results.items() if count > 1)
        for kind, data in parts:
            name = calls[data["toolCallId"]]["tool"] if kind == "tool-result" and data["ok"] else ""
            if name.startswith(PECULIAR):
                tool = name.removeprefix(PECULIAR)
                if did[tool, data["toolCallId"]] != 1:
                    yield f"run {run_id} has a result of {tool} {data['toolCallId']}, which did not take effect"


def _views(users: Sequence[User], views: dict[str, dict[str, Any] | None]) -> Iterator[str]:
    for user in users:
        if (thread := views[user.name]) is None:
            yield f"{user.name} can't read the thread"
        else:
            yield from views_of(user, thread)


def views_of(user: User, thread: dict[str, Any]) -> Iterator[str]:
    """The differences between the views of the user's observers and the thread."""
    for observer in user.observers:
        yield from (f"{observer.name} {problem}" for problem in _view(observer, thread))


def _view(observer: ThreadObserver, thread: dict[str, Any]) -> Iterator[str]:
    view = observer.view
    if view.revision != thread["revision"]:
        yield f"is at revision {view.revision}, and the thread is at {thread['revision']}"
    for message in thread["messages"]:
        if message["id"] in view.unlisted:
            continue
        head = view.messages.get(message["id"])
        if head is None:
            yield f"has not seen message {message['id']}"
        elif head["status"] != message["status"]:
            yield f"has message {message['id']} as {head['status']}, and it is {message['status']}"
        elif view.text(message["id"]) != text_of(message):
            yield f"has another text of message {message['id']}"
        elif view.tool_states.get(message["id"], {}) != tool_states_of(message):
            states = f"{view.tool_states.get(message['id'])}, {tool_states_of(message)}"
            yield f"has other tool states of message {message['id']}: {states}"
    for plan in thread.get("plans", ()):
        if view.plans.get(plan["id"]) != plan:
            yield f"has plan {plan['id']} as {view.plans.get(plan['id'])}, and it is {plan}"
    for message_id in view.messages.keys() - {message["id"] for message in thread["messages"]}:
        if not thread["hasMore"] and "step" not in view.messages[message_id]:
            yield f"has seen message {message_id}, which does not exist"


def _observed(users: Sequence[User]) -> Iterator[str]:
    for user in users:
        yield from (f"{user.name}: {problem}" for problem in user.problems)
        for observer in user.observers:
            yield from (f"{observer.name}: {problem}" for problem in observer.problems)


def _names(deployment: Deployment) -> Any:
    proxies = [member.database for member in deployment.members.values()]
    return lambda port: set().union(*(proxy.names.get(port, set()) for proxy in proxies))


def _crashes(deployment: Deployment) -> Iterator[str]:
    for member in deployment.members.values():
        crashes = member.process.crashes()
        yield from (f"{member.name}: {line[:600]}" for line in crashes[:5])
        if len(crashes) > 5:
            yield f"{member.name}: and {len(crashes) - 5} more such lines"
        yield from (f"{member.name} ended by itself with status {code}" for code in member.ended_by_itself)
