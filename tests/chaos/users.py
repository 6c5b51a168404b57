"""Users of a chaos run: each has a thread and a script, retries requests, and records acknowledged messages."""

import asyncio
import time
import uuid
from contextlib import AsyncExitStack
from typing import Any

import httpx
import msgspec

from tests.chaos.command_checks import GIT_AGENT
from tests.chaos.deployment import Deployment
from tests.chaos.model import prompt_text
from tests.chaos.observers import Credentials, ThreadObserver
from tests.chaos.schedule import Action, Script
from tests.support.agents import PECULIAR
from tests.support.checkouts import make_checkout

RETRY_TIMEOUT_SECONDS = 100.0
"""For all attempts of one request."""
RETRIED_STATUSES = frozenset({429, 500, 503})
PASSWORD = "en taro adun, executor"


class Acknowledged(msgspec.Struct):
    """An acknowledged send or regenerate: its text, and its response, path and body for a repetition."""

    text: str
    ids: dict[str, Any]


class User:
    """One user. `problems` has the responses that a server must not give."""

    def __init__(self, deployment: Deployment, script: Script) -> None:
        self.name = script.name
        self._deployment = deployment
        self.script = script
        self.thread_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{deployment.folder} {script.name}"))
        self.credentials = Credentials(f"chaos-{script.name}-{uuid.uuid4().hex}-{uuid.uuid4().hex}")
        self.acknowledged: list[Acknowledged] = []
        """The acknowledged requests since the last reset."""
        self.plans: list[str] = []
        """The plans since the last reset."""
        self.unsure = False
        """Whether a reset without a response may still happen, so that it is unknown which messages it removes."""
        self.problems: list[str] = []
        self.sends = self.refused = 0
        self.observers = [
            ThreadObserver(f"{self.name} at {web.name}", web.clients.port, self.thread_id, self.credentials)
            for web in deployment.webs
        ]
        self._http = [
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{web.clients.port}/api", timeout=5, trust_env=False)
            for web in deployment.webs
        ]
        self._server_index = 0
        self._count = 0
        self._failed = 0

    async def run_script(self) -> None:
        """Carry out the actions of the script."""
        for action in self.script.steps:
            await asyncio.sleep(action.pause)
            self._server_index = action.choice
            await getattr(self, f"_{action.kind}")(action)

    async def open(self) -> None:
        """Create the thread and its checkout, and set its rules."""
        await asyncio.to_thread(make_checkout, self._deployment.checkouts / self.thread_id)
        await self._request("POST", "/threads", {"id": self.thread_id, "anonKey": self.credentials.anon_key})
        rules = [{"pattern": "*", "action": "allow"}]
        if self.script.asks:
            rules.append({"pattern": f"{PECULIAR}risk", "action": "ask"})
        await self._request("PUT", f"/threads/{self.thread_id}/tool-rules", {"items": rules})

    async def following(self, stack: AsyncExitStack) -> None:
        """Let the observers follow for as long as the stack is open."""
        for http in self._http:
            stack.push_async_callback(http.aclose)
        for observer in self.observers:
            await stack.enter_async_context(observer.following())

    async def snapshot(self) -> dict[str, Any]:
        """The current snapshot of the thread."""
        return dict((await self._request("GET", f"/threads/{self.thread_id}?limit=200")).json())

    async def answer(self, run_id: str, *, yes: bool = True) -> None:
        """Decide all pending approvals of this run."""
        response = await self._request("GET", f"/runs/{run_id}/approvals", expected=(200, 404))
        for approval in response.json().get("items", ()):
            if approval["state"] == "pending":
                path = f"/runs/{run_id}/approvals/{approval['toolCallId']}"
                # An earlier attempt may have arrived, or the run may have been removed meanwhile.
                await self._request("POST", path, {"approved": yes}, expected=(200, 404, 409))

    async def _send(self, action: Action) -> None:
        self._count += 1
        text = prompt_text(f"{self.name}.{self._count}", action)
        body = {"text": text, "messageId": str(uuid.uuid4()), "options": self._options(action)}
        await self._send_request("send", body, text)

    async def _send_request(self, path: str, body: dict[str, Any], text: str) -> None:
        self.sends += 1
        response = await self._request("POST", f"/threads/{self.thread_id}/{path}", body, expected=(200, 202, 409))
        if response.status_code == 409:
            self.refused += 1
            if response.json()["code"] != "run_active":
                self.problems.append(f"{path} of {body} was refused with {response.text}")
            return
        self.acknowledged.append(Acknowledged(text, response.json() | {"path": path, "body": body}))

    def _options(self, action: Action) -> dict[str, Any]:
        return {"autopilot": True, "ifBusy": action.if_busy, "tools": [f"{PECULIAR}*"]}

    async def _repeat(self, action: Action) -> None:
        if not self.acknowledged or self.unsure:
            return
        last = self.acknowledged[-1].ids
        path = f"/threads/{self.thread_id}/{last['path']}"
        response = await self._request("POST", path, last["body"], expected=(200,))
        names = ("userMessageId", "assistantMessageId", "runId")
        if any(response.json().get(name) != last[name] for name in names):
            self.problems.append(f"a repeated {last['path']} has other ids: {last} and {response.text}")

    async def _regenerate(self, action: Action) -> None:
        if not self.acknowledged or self.unsure:
            return
        question = self.acknowledged[-1]
        body = {"messageId": question.ids["userMessageId"], "answerId": str(uuid.uuid4())}
        await self._send_request("regenerate", body | {"options": self._options(action)}, question.text)

    async def _cancel(self, action: Action) -> None:
        if self.acknowledged:
            path = f"/runs/{self.acknowledged[-1].ids['runId']}/cancel"
            await self._request("POST", path, {}, expected=(200, 202, *self._if_reset_pending()))

    def _if_reset_pending(self) -> tuple[int, ...]:
        return (404,) if self.unsure else ()

    async def _answer(self, action: Action) -> None:
        for acknowledged in self.acknowledged[-2:]:
            await self.answer(acknowledged.ids["runId"], yes=action.yes)

    async def _plan(self, action: Action) -> None:
        plan_id = str(uuid.uuid4())
        steps = [self._plan_step(action, number, before) for number, before in enumerate(action.plan_steps)]
        config: dict[str, Any] = {"agents": [action.agent], "stepDelayMs": 0, "retryBaseMs": 100}
        if action.agent == GIT_AGENT:
            # Attempts side by side have worktrees. So one that is killed does not keep others from starting.
            config |= {"parallel": max(2, action.parallel), "git": {}}
        else:
            config["parallel"] = action.parallel
        body = {"planId": plan_id, "title": f"Plan of {self.name}", "steps": steps, "config": config}
        await self._request("POST", f"/threads/{self.thread_id}/plans", body)
        self.plans.append(plan_id)
        # A repeated start finds the plan running.
        await self.command_plan(plan_id, "start")

    def _plan_step(self, action: Action, number: int, before: tuple[int, ...]) -> dict[str, Any]:
        self._count += 1
        instructions = prompt_text(f"{self.name}.{self._count}", action, completes=True)
        depends_on = [f"s{other}" for other in before]
        return {"id": f"s{number}", "title": f"Step {number}", "instructions": instructions, "dependsOn": depends_on}

    async def _command(self, action: Action) -> None:
        if self.plans:
            await self.command_plan(self.plans[-1], action.command)

    async def command_plan(self, plan_id: str, command: str) -> None:
        """Give a plan a command. It may not fit the state of the plan, or the plan may be gone after a reset."""
        path, body = ("pause", {"force": True}) if command == "force" else (command, {})
        await self._request("POST", f"/plans/{plan_id}/{path}", body, expected=(200, 404, 409))

    async def _reset(self, action: Action) -> None:
        failed = self._failed
        self.acknowledged = []
        self.plans = []
        await self._request("POST", f"/threads/{self.thread_id}/reset", {})
        # An attempt without a response may still be carried out, after later requests.
        self.unsure = self.unsure or self._failed > failed

    async def _claim(self, action: Action) -> None:
        if self.credentials.token:
            return
        email = f"{self.name}@chaos.example"
        credentials = {"email": email, "password": PASSWORD}
        session = await self._request("POST", "/auth/register", credentials, expected=(201, 409), anonymous=True)
        if session.status_code == 409:  # an earlier attempt arrived
            session = await self._request("POST", "/auth/login", credentials, anonymous=True)
        cookies = {"Cookie": "; ".join(f"{name}={value}" for name, value in session.cookies.items())}
        body = {"name": "chaos", "scopes": ["read", "write", "account"]}
        token = await self._request("POST", "/tokens", body, expected=(201,), headers=cookies)
        bearer = {"Authorization": f"Bearer {token.json()['token']}"}
        self.credentials.claiming = True
        claim = {"anonKey": self.credentials.anon_key}
        await self._request("POST", f"/threads/{self.thread_id}/claim", claim, headers=bearer)
        self.credentials.token = token.json()["token"]

    async def _reconnect(self, action: Action) -> None:
        self.observers[action.choice].drop()

    async def _read(self, action: Action) -> None:
        thread = await self.snapshot()
        message_ids = {message["id"] for message in thread["messages"]}
        for acknowledged in () if self.unsure or thread["hasMore"] else self.acknowledged:
            if (
                acknowledged.ids["userMessageId"] not in message_ids
                or acknowledged.ids["assistantMessageId"] not in message_ids
            ):
                self.problems.append(f"{acknowledged.ids} was acknowledged, and cannot be read")

    async def _request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        expected: tuple[int, ...] = (200, 201, 204),
        headers: dict[str, str] | None = None,
        anonymous: bool = False,
    ) -> httpx.Response:
        """Send a request until a response comes, to the servers in turn. `expected` are the permitted statuses."""
        until = time.monotonic() + RETRY_TIMEOUT_SECONDS
        while time.monotonic() < until:
            http = self._http[self._server_index % len(self._http)]
            chosen = {} if anonymous else (headers or self.credentials.headers)
            try:
                response = await http.request(method, path, json=body, headers=chosen)
            except httpx.TransportError:
                self._failed += 1
                self._server_index += 1
                await asyncio.sleep(0.2)
                continue
            finally:
                http.cookies.clear()
            if response.status_code in expected:
                return response
            if response.status_code not in RETRIED_STATUSES:
                raise UnexpectedResponse(f"{self.name}: {method} {path} got {response.status_code} {response.text}")
            if response.status_code == 500:
                self.problems.append(f"{method} {path} got {response.text}")
            self._failed += 1
            self._server_index += 1
            await asyncio.sleep(0.3)
        raise UnexpectedResponse(f"{self.name}: {method} {path} had no response")


class UnexpectedResponse(Exception):
    """A server refused a request that it must accept, or did not respond in time."""
