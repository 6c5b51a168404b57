"""Users: each has one thread and a script, insists until the server has said yes or no, and remembers every yes."""

import asyncio
import time
import uuid
from contextlib import AsyncExitStack
from typing import Any

import httpx
import msgspec

from tests.chaos.model import asking
from tests.chaos.schedule import Script, Step
from tests.chaos.watchers import Keys, Watcher
from tests.chaos.world import World
from tests.support.agents import PECULIAR

INSISTING = 100.0
"""Seconds for which a user goes on asking the same."""
AGAIN = frozenset({429, 500, 503})
"""Statuses after which the same is asked again."""
PASSWORD = "en taro adun, executor"


class Acknowledged(msgspec.Struct):
    """A send or a regenerate that the server has said yes to: the question's text, and what to ask again."""

    text: str
    ids: dict[str, Any]


class User:
    """One of them. `wrong` is what a server should not have said."""

    def __init__(self, world: World, script: Script) -> None:
        self.name = script.name
        self.script = script
        self.thread_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{world.folder} {script.name}"))
        self.keys = Keys(f"chaos-{script.name}-{uuid.uuid4().hex}-{uuid.uuid4().hex}")
        self.acknowledged: list[Acknowledged] = []
        """Since the last reset."""
        self.unsure = False
        """Whether a reset was asked for that may come to pass at any later time, so that nobody knows what is lost."""
        self.wrong: list[str] = []
        self.asked = self.refused = 0
        self.watchers = [
            Watcher(f"{self.name} at {web.name}", web.clients.port, self.thread_id, self.keys) for web in world.webs
        ]
        self._http = [
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{web.clients.port}/api", timeout=5, trust_env=False)
            for web in world.webs
        ]
        self._turn = 0
        self._count = 0
        self._failed = 0

    async def live(self) -> None:
        """Do as the script says."""
        for step in self.script.steps:
            await asyncio.sleep(step.pause)
            self._turn = step.choice
            await getattr(self, f"_{step.kind}")(step)

    async def open(self) -> None:
        """Make the thread, with its rules."""
        await self._insist("POST", "/threads", {"id": self.thread_id, "anonKey": self.keys.anon_key})
        rules = [{"pattern": "*", "action": "allow"}]
        if self.script.asks:
            rules.append({"pattern": f"{PECULIAR}risk", "action": "ask"})
        await self._insist("PUT", f"/threads/{self.thread_id}/tool-rules", {"items": rules})

    async def following(self, stack: AsyncExitStack) -> None:
        """Let the watchers follow for as long as the stack is open."""
        for http in self._http:
            stack.push_async_callback(http.aclose)
        for watcher in self.watchers:
            await stack.enter_async_context(watcher.following())

    async def snapshot(self) -> dict[str, Any]:
        """The thread as it is."""
        return dict((await self._insist("GET", f"/threads/{self.thread_id}?limit=200")).json())

    async def answer(self, run_id: str, *, yes: bool = True) -> None:
        """Answer all that this run asks."""
        found = await self._insist("GET", f"/runs/{run_id}/approvals", least=(200, 404))
        for one in found.json().get("items", ()):
            if one["state"] == "pending":
                path = f"/runs/{run_id}/approvals/{one['toolCallId']}"
                # Another try of ours may have been heard, or the run may be gone meanwhile.
                await self._insist("POST", path, {"approved": yes}, least=(200, 404, 409))

    async def _send(self, step: Step) -> None:
        self._count += 1
        text = asking(f"{self.name}.{self._count}", step)
        body = {"text": text, "messageId": str(uuid.uuid4()), "options": self._options(step)}
        await self._ask("send", body, text)

    async def _ask(self, path: str, body: dict[str, Any], text: str) -> None:
        self.asked += 1
        said = await self._insist("POST", f"/threads/{self.thread_id}/{path}", body, least=(200, 202, 409))
        if said.status_code == 409:
            self.refused += 1
            if said.json()["code"] != "run_active":
                self.wrong.append(f"{path} of {body} was refused with {said.text}")
            return
        self.acknowledged.append(Acknowledged(text, said.json() | {"path": path, "body": body}))

    def _options(self, step: Step) -> dict[str, Any]:
        return {"autopilot": True, "ifBusy": step.if_busy, "tools": [f"{PECULIAR}*"]}

    async def _repeat(self, step: Step) -> None:
        if not self.acknowledged or self.unsure:
            return
        last = self.acknowledged[-1].ids
        path = f"/threads/{self.thread_id}/{last['path']}"
        said = await self._insist("POST", path, last["body"], least=(200,))
        names = ("userMessageId", "assistantMessageId", "runId")
        if any(said.json().get(name) != last[name] for name in names):
            self.wrong.append(f"the same {last['path']} again has other ids: {last} and {said.text}")

    async def _regenerate(self, step: Step) -> None:
        if not self.acknowledged or self.unsure:
            return
        question = self.acknowledged[-1]
        body = {"messageId": question.ids["userMessageId"], "answerId": str(uuid.uuid4())}
        await self._ask("regenerate", body | {"options": self._options(step)}, question.text)

    async def _cancel(self, step: Step) -> None:
        if self.acknowledged:
            path = f"/runs/{self.acknowledged[-1].ids['runId']}/cancel"
            await self._insist("POST", path, {}, least=(200, 202, *self._perhaps_gone()))

    def _perhaps_gone(self) -> tuple[int, ...]:
        return (404,) if self.unsure else ()

    async def _answer(self, step: Step) -> None:
        for one in self.acknowledged[-2:]:
            await self.answer(one.ids["runId"], yes=step.yes)

    async def _reset(self, step: Step) -> None:
        failed = self._failed
        self.acknowledged = []
        await self._insist("POST", f"/threads/{self.thread_id}/reset", {})
        # One that went unheard may still come to pass, after what is asked next.
        self.unsure = self.unsure or self._failed > failed

    async def _claim(self, step: Step) -> None:
        if self.keys.token:
            return
        email = f"{self.name}@chaos.example"
        who = {"email": email, "password": PASSWORD}
        made = await self._insist("POST", "/auth/register", who, least=(201, 409), bare=True)
        if made.status_code == 409:  # an earlier try was heard
            made = await self._insist("POST", "/auth/login", who, bare=True)
        cookies = {"Cookie": "; ".join(f"{name}={value}" for name, value in made.cookies.items())}
        body = {"name": "chaos", "scopes": ["read", "write", "account"]}
        token = await self._insist("POST", "/tokens", body, least=(201,), headers=cookies)
        bearer = {"Authorization": f"Bearer {token.json()['token']}"}
        self.keys.claiming = True
        claim = {"anonKey": self.keys.anon_key}
        await self._insist("POST", f"/threads/{self.thread_id}/claim", claim, headers=bearer)
        self.keys.token = token.json()["token"]

    async def _reconnect(self, step: Step) -> None:
        self.watchers[step.choice].drop()

    async def _read(self, step: Step) -> None:
        found = await self.snapshot()
        there = {message["id"] for message in found["messages"]}
        for one in () if self.unsure or found["hasMore"] else self.acknowledged:
            if one.ids["userMessageId"] not in there or one.ids["assistantMessageId"] not in there:
                self.wrong.append(f"{one.ids} was acknowledged, and is not there to be read")

    async def _insist(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        least: tuple[int, ...] = (200, 201, 204),
        headers: dict[str, str] | None = None,
        bare: bool = False,
    ) -> httpx.Response:
        """Ask until there is an answer, of one server and then of the other; `least` are the statuses that may come."""
        until = time.monotonic() + INSISTING
        while time.monotonic() < until:
            http = self._http[self._turn % len(self._http)]
            chosen = {} if bare else (headers or self.keys.headers)
            try:
                said = await http.request(method, path, json=body, headers=chosen)
            except httpx.TransportError:
                self._failed += 1
                self._turn += 1
                await asyncio.sleep(0.2)
                continue
            finally:
                http.cookies.clear()
            if said.status_code in least:
                return said
            if said.status_code not in AGAIN:
                raise Refused(f"{self.name}: {method} {path} got {said.status_code} {said.text}")
            if said.status_code == 500:
                self.wrong.append(f"{method} {path} got {said.text}")
            self._failed += 1
            self._turn += 1
            await asyncio.sleep(0.3)
        raise Refused(f"{self.name}: {method} {path} had no answer")


class Refused(Exception):
    """A server said no to what it has to say yes to."""
