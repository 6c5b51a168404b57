"""Calls the REST API of a running server, for plans."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from uuid import UUID

import aiohttp
import msgspec

from khala.console import KnownFailure
from khala.domain.chat import ACTIVE, Run
from khala.domain.plans.views import PlanDetail, PlanEntry, PlanEventEntry, StepDetail

TIMEOUT_SECONDS = 30.0
MAX_ANSWER_BYTES = 32 << 20
EVENTS_PER_PAGE = 500
MAX_LISTED_PLANS = 100
HOW_TO_START = "Start a server with `khala serve`, or name one with --server or KHALA_URL."
HOW_TO_SIGN_IN = "Set KHALA_TOKEN to an API token with the scopes `read` and `write`, or KHALA_ANON_KEY."

Decoded = TypeVar("Decoded")


class ServerConnection(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a server, and the credentials for it. `anon_key` opens a guest's thread."""

    server: str
    token: str | None = None
    anon_key: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers that authenticate a request."""
        given = {"Authorization": self.token and f"Bearer {self.token}", "X-Anon-Key": self.anon_key}
        return {name: value for name, value in given.items() if value}


class ServerUnreachable(KnownFailure):
    """There is no answer, or it is not one of Khala."""


class RequestRefused(KnownFailure):
    """The server refused a request. `code` is the stable name of the reason."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{detail} {HOW_TO_SIGN_IN}" if status in (401, 403) else detail)
        self.status = status
        self.code = code

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status >= 500 or self.status == 429


class _Items(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw]


class DraftState(msgspec.Struct, frozen=True, rename="camel"):
    """The run that makes a plan, and the plan when it is made."""

    plan_id: UUID
    run: Run
    plan: PlanDetail | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing changes any more."""
        return self.run.status not in ACTIVE


class PlanThread(msgspec.Struct, frozen=True, rename="camel"):
    """A new thread. A guest's one has a key."""

    thread: "ThreadIdentity"
    anon_key: str | None = None


class ThreadIdentity(msgspec.Struct, frozen=True):
    """The id of a thread."""

    id: UUID


class PlanApiClient:
    """Plans of a server. Each method raises `RequestRefused` or `ServerUnreachable`."""

    def __init__(self, session: aiohttp.ClientSession, connection: ServerConnection) -> None:
        self.session = session
        self.connection = connection

    async def create_thread(self, title: str | None) -> PlanThread:
        """Create a thread. Without a token it is a guest's one, with this connection's key or a new one."""
        guest_key = None if self.connection.token else self.connection.anon_key
        given = {"title": title, "anonKey": guest_key}
        body = {name: value for name, value in given.items() if value is not None}
        return _decode(await self._request("POST", "threads", body), PlanThread)

    async def import_plan(self, thread_id: UUID, body: Mapping[str, Any]) -> PlanDetail:
        """Create a plan from a document."""
        return await self._plan("POST", f"threads/{thread_id}/plans/import", body)

    async def draft_plan(self, thread_id: UUID, body: Mapping[str, Any]) -> DraftState:
        """Have a model make a plan from a goal."""
        return _decode(await self._request("POST", f"threads/{thread_id}/plans/draft", body), DraftState)

    async def draft(self, thread_id: UUID, plan_id: UUID) -> DraftState:
        """The draft of a plan as it is now."""
        return _decode(await self._request("GET", f"threads/{thread_id}/plans/draft/{plan_id}"), DraftState)

    async def cancel_run(self, run_id: UUID) -> None:
        """Cancel a run."""
        await self._request("POST", f"runs/{run_id}/cancel", {})

    async def plans(self, thread_id: UUID) -> list[PlanEntry]:
        """The plans of a thread, the newest first."""
        return _items(await self._request("GET", f"threads/{thread_id}/plans?limit={MAX_LISTED_PLANS}"), PlanEntry)

    async def plan(self, plan_id: UUID) -> PlanDetail:
        """A plan without its steps."""
        return await self._plan("GET", f"plans/{plan_id}")

    async def steps(self, plan_id: UUID) -> list[StepDetail]:
        """All steps of a plan, in order."""
        return _items(await self._request("GET", f"plans/{plan_id}/steps"), StepDetail)

    async def events(self, plan_id: UUID, after: int) -> AsyncIterator[PlanEventEntry]:
        """All events after this one, in order."""
        while True:
            path = f"plans/{plan_id}/events?after={after}&limit={EVENTS_PER_PAGE}"
            page = _items(await self._request("GET", path), PlanEventEntry)
            for event in page:
                yield event
            if len(page) < EVENTS_PER_PAGE:
                return
            after = page[-1].seq

    async def command(self, plan_id: UUID, name: str, body: Mapping[str, Any] | None = None) -> PlanDetail:
        """Give a plan a command, such as `pause` or `steps/S1/skip`. Returns the plan after it."""
        return await self._plan("POST", f"plans/{plan_id}/{name}", body or {})

    async def change(self, plan_id: UUID, body: Mapping[str, Any]) -> PlanDetail:
        """Change the title or the goal of a plan."""
        return await self._plan("PATCH", f"plans/{plan_id}", body)

    async def export(self, plan_id: UUID, kind: str) -> bytes:
        """The plan as a document."""
        return await self._request("GET", f"plans/{plan_id}/export?format={kind}")

    async def _plan(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> PlanDetail:
        return _decode(await self._request(method, path, body), PlanDetail)

    async def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """The body of a good answer."""
        url = f"{self.connection.server}/api/{path}"
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        try:
            async with self.session.request(method, url, json=body, allow_redirects=False, timeout=timeout) as response:
                answer = await _bounded(response)
                if response.status >= 300:
                    raise refusal(response.status, answer)
                return answer
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            raise ServerUnreachable(unreachable_message(self.connection.server, error)) from error


@asynccontextmanager
async def open_client(connection: ServerConnection) -> AsyncIterator[PlanApiClient]:
    """A client for as long as the context is open."""
    headers = {"Accept": "application/json", **connection.headers}
    async with aiohttp.ClientSession(headers=headers) as session:
        yield PlanApiClient(session, connection)


def refusal(status: int, body: bytes) -> RequestRefused:
    """The error of an answer that is not good."""
    try:
        problem = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return RequestRefused(status, "", f"The server answered {status}. It may not be Khala.")
    detail = str(problem.get("detail") or problem.get("title") or f"The server answered {status}.")
    reasons = [_reason(one) for one in _errors(problem)]
    if len(reasons) == 1 and reasons[0].endswith(detail):
        detail = reasons.pop()
    return RequestRefused(status, str(problem.get("code", "")), "\n  ".join([detail, *reasons]))


def _reason(error: Mapping[str, Any]) -> str:
    """The message, after its place: in a document, `line 3` and not `document.line 3`."""
    place = str(error.get("path") or "").removeprefix("document").removeprefix(".")
    message = str(error.get("message"))
    return f"{place}: {message}" if place else message


def _errors(problem: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    errors = problem.get("errors")
    return [one for one in errors if isinstance(one, dict)] if isinstance(errors, list) else []


def unreachable_message(server: str, error: Exception) -> str:
    """The reason, and how to start a server."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        reason = "its name is unknown"
    elif isinstance(error, aiohttp.ClientConnectorError):
        reason = os.strerror(error.errno).lower() if error.errno else "no connection"
    else:
        reason = str(error) or "it took too long"
    return f"{server} does not answer: {reason}. {HOW_TO_START}"


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    chunks, size = [], 0
    async for chunk in response.content.iter_chunked(1 << 16):
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            raise ValueError("its answer is too large")
        chunks.append(chunk)
    return b"".join(chunks)


def _items(body: bytes, kind: type[Decoded]) -> list[Decoded]:
    """The items of an answer."""
    return [_decode(item, kind) for item in _decode(body, _Items).items]


def _decode(body: bytes | msgspec.Raw, kind: type[Decoded]) -> Decoded:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise ServerUnreachable(f"The server's answer can't be read: {error}. Are both of the same version?") from error
