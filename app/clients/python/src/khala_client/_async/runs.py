"""One run: its text, its result, its approvals."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from khala_client._async.core import AsyncCore
from khala_client.bodies import Id, as_id, body, segment
from khala_client.content import PartData
from khala_client.credentials import Keys
from khala_client.feed import FollowOptions
from khala_client.followers import RunResult, RunTarget
from khala_client.models import Approval, Receipt, RunInfo
from khala_client.streams import AsyncStream
from khala_client.wire import WireStruct


class _Approvals(WireStruct, frozen=True, kw_only=True):
    items: tuple[Approval, ...]


class _Receipts(WireStruct, frozen=True, kw_only=True):
    items: tuple[Receipt, ...]


class AsyncRun:
    """A run: one answer of an agent. Threads create it by `send`, and `runs.get` finds it.

    Nothing is lost if this object is: the run goes on, and `runs.get` returns it again.
    """

    def __init__(self, core: AsyncCore, target: RunTarget, user_message_id: UUID | None = None) -> None:
        self._core = core
        self._target = target
        self._path = f"/api/runs/{target.run_id}"
        self.user_message_id = user_message_id

    @property
    def id(self) -> UUID:
        """The run's id."""
        return self._target.run_id

    @property
    def thread_id(self) -> UUID:
        """The id of its thread."""
        return self._target.thread_id

    @property
    def message_id(self) -> UUID:
        """The id of its answer."""
        return self._target.message_id

    @property
    def _keys(self) -> Keys:
        return self._target.keys

    async def get(self) -> RunInfo:
        """The run as it is now."""
        return await self._core.request("GET", self._path, RunInfo, keys=self._keys)

    def follow(self, *, after: int = -1, options: FollowOptions | None = None) -> AsyncStream[tuple[int, PartData]]:
        """The `seq` and the data of each part over `after`, once and in order, up to and including its `Finish`.

        Raises `NotFound` if the thread is reset or deleted, and the errors of `AsyncThread.follow`.
        """
        return self._core.follow_run(self._target, after, options or FollowOptions())

    def stream_text(self, *, options: FollowOptions | None = None) -> AsyncStream[str]:
        """The text of the answer in pieces, from its beginning. Joined, they are the text of the answer.

        If the send asked for JSON by `response_format`, the text comes at once, when it is checked. A run that was
        found by its id raises `AnswerReplaced` if the model writes such an answer again. Raises `RunFailed` after the
        text of a run that failed.
        """
        return self._core.run_text(self._target, options or FollowOptions())

    async def result(self, *, timeout: float | None = None, options: FollowOptions | None = None) -> RunResult:
        """Wait until the run has ended, at most `timeout` seconds.

        A run that was canceled has `finish.reason` `canceled`. Raises `RunFailed` if the run failed, with its text so
        far, and `TimeoutError`.
        """
        return await self._core.run_result(self._target, options or FollowOptions(), timeout)

    async def cancel(self, reason: str | None = None) -> RunInfo:
        """End the run. Its text so far stays. Nothing happens if it has ended."""
        return await self._core.request(
            "POST", f"{self._path}/cancel", RunInfo, body=body(reason=reason), keys=self._keys, idempotent=True
        )

    async def approvals(self) -> list[Approval]:
        """The tool calls that wait for a decision, or had one."""
        answer = await self._core.request("GET", f"{self._path}/approvals", _Approvals, keys=self._keys)
        return list(answer.items)

    async def approve(
        self,
        call: Approval | str,
        *,
        edited_args: Mapping[str, Any] | None = None,
        reason: str | None = None,
        digest: str | None = None,
    ) -> Approval:
        """Let a tool call run, with other arguments if `edited_args` are given.

        An `Approval` is approved exactly as it was read. Raises `Conflict` if it was decided otherwise before.
        """
        return await self._decide(call, digest, approved=True, edited_args=edited_args, reason=reason)

    async def deny(self, call: Approval | str, *, reason: str | None = None, digest: str | None = None) -> Approval:
        """Refuse a tool call. The model gets the reason. Raises `Conflict` if it was decided otherwise before."""
        return await self._decide(call, digest, approved=False, reason=reason)

    async def receipts(self) -> list[Receipt]:
        """The records of all model and tool calls of the run."""
        answer = await self._core.request("GET", f"{self._path}/receipts", _Receipts, keys=self._keys)
        return list(answer.items)

    async def _decide(self, call: Approval | str, digest: str | None, **decision: Any) -> Approval:
        call_id = call.tool_call_id if isinstance(call, Approval) else call
        digest = call.digest if isinstance(call, Approval) and digest is None else digest
        return await self._core.request(
            "POST",
            f"{self._path}/approvals/{segment(call_id)}",
            Approval,
            body=body(digest=digest, **decision),
            keys=self._keys,
            idempotent=True,
        )


class AsyncRuns:
    """Finds runs by their ids."""

    def __init__(self, core: AsyncCore) -> None:
        self._core = core

    async def get(self, run_id: Id, *, keys: Keys | None = None) -> AsyncRun:
        """The run with this id. `keys` open its thread."""
        given = keys or Keys()
        found = await self._core.request("GET", f"/api/runs/{as_id(run_id)}", RunInfo, keys=given)
        target = RunTarget(run_id=found.id, thread_id=found.thread_id, message_id=found.message_id, keys=given)
        return AsyncRun(self._core, target)
