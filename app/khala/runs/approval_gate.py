"""Decides whether a tool call of a run may be executed: now, never, or after a person has approved it."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import assert_never
from uuid import UUID

import msgspec

from khala.domain.parts import ToolStatus
from khala.domain.run_progress import ToolCallProgress
from khala.domain.tools import RuleAction, call_digest
from khala.runs.tool_arguments import MAX_INLINE_ARGUMENT_BYTES
from khala.runs.tool_call_recorder import ToolCallRecorder
from khala.store.tools.approvals import Approval
from khala.tools.port import Tool, ToolError
from khala.tools.validation import arguments


class ApprovalDecisions:
    """The decisions of people about calls of one run that wait for approval."""

    def __init__(self) -> None:
        self.awaited = False
        """Whether a call waits for a decision."""
        self.by_call_id: dict[str, Approval] = {}
        self.changed = asyncio.Event()
        self._questions: dict[str, asyncio.Future[Approval]] = {}

    @property
    def is_awaited(self) -> bool:
        """Whether a call or a question waits for a decision."""
        return self.awaited or bool(self._questions)

    def allows(self, tool: str, user_id: UUID | None) -> bool:
        """Whether the requester has approved all calls of this tool in the run.

        Calls act for `user_id`. What a guest has approved does not reach to calls of the account that has claimed the
        thread since.
        """
        return any(
            one.tool == tool and one.allow == "run" and one.state == "approved" and user_id in (None, one.decided_by)
            for one in self.by_call_id.values()
        )

    def receive(self, approvals: Mapping[str, Approval]) -> None:
        """Add the decisions among `approvals`, which are all approvals of the run."""
        decided = {call_id: approval for call_id, approval in approvals.items() if approval.state != "pending"}
        if decided.keys() - self.by_call_id.keys():
            self.by_call_id |= decided
            self.changed.set()
        for question_id in self._questions.keys() & decided.keys():
            if not self._questions[question_id].done():
                self._questions[question_id].set_result(decided[question_id])

    async def wait_for(self, question_id: str, seconds: float) -> Approval | None:
        """Return the decision about a question of a call, or None if there is none in time."""
        if question_id in self.by_call_id:
            return self.by_call_id[question_id]
        self._questions[question_id] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                return await self._questions[question_id]
        except TimeoutError:
            return None
        finally:
            del self._questions[question_id]


class ApprovalGate:
    """The gate of one run. A request for approval expires after `expires_after_seconds`."""

    def __init__(self, recorder: ToolCallRecorder, decisions: ApprovalDecisions, expires_after_seconds: float) -> None:
        self._recorder = recorder
        self._decisions = decisions
        self._expires_after_seconds = expires_after_seconds

    async def admits(self, call: ToolCallProgress, tool: Tool, action: RuleAction, user_id: UUID | None) -> bool:
        """Whether the call may be executed now, for this user or a guest.

        A call that the rules deny fails here. For a call that needs approval, the approval is requested.
        """
        if call.state == "blocked":
            return self._is_approved(call)
        try:
            # Checked first, so that no approval is requested for arguments that the tool would refuse.
            await arguments.check(tool.spec, call.args or {})
        except ToolError as problem:
            self._recorder.fail(call, problem.message, problem.code)
            return False
        match action:
            case "allow":
                return True
            case "ask" if self._decisions.allows(call.tool, user_id):
                return True
            case "ask":
                self._request(call, tool)
            case "deny":
                self._recorder.fail(call, f"The rules do not allow calls of {call.tool}.", "forbidden")
            case _:
                assert_never(action)
        return False

    def started_status(self, call: ToolCallProgress) -> ToolStatus:
        """The status of a call that begins now, with the person who approved it and the approved arguments."""
        approval = self._decisions.by_call_id.get(call.id)
        if approval is None:
            return ToolStatus(tool_call_id=call.id, state="running")
        reason = f"Approved by {approval.decided_name}." if approval.decided_name else "Approved."
        edited = approval.edited_args
        if edited is not None and len(msgspec.json.encode(edited)) > MAX_INLINE_ARGUMENT_BYTES:
            edited = None  # They are too long for a part. The approval has them.
        return ToolStatus(tool_call_id=call.id, state="running", reason=reason, args=edited)

    def _request(self, call: ToolCallProgress, tool: Tool) -> None:
        status = ToolStatus(
            tool_call_id=call.id,
            state="blocked",
            reason=f"{call.tool} needs approval.",
            digest=call_digest(call.tool, call.args or {}),
            expires_at=datetime.now(UTC) + timedelta(seconds=self._expires_after_seconds),
        )
        self._recorder.request_approval(status, call, tool.spec.parameters)

    def _is_approved(self, call: ToolCallProgress) -> bool:
        """Whether the call was approved. It then gets the approved arguments. A denied or expired call fails."""
        approval = self._decisions.by_call_id.get(call.id)
        if approval is None:
            return False
        match approval.state:
            case "approved":
                if approval.edited_args is not None:
                    call.args, call.args_blob = approval.edited_args, None
                return True
            case "denied":
                reason = f": {approval.reason}" if approval.reason else "."
                self._recorder.fail(call, f"Denied by {approval.decided_name or 'a user'}{reason}", "denied")
            case "expired":
                self._recorder.fail(call, "Nobody approved this in time.", "expired")
            case "pending":
                pass  # Pending approvals are never among the decisions.
            case _:
                assert_never(approval.state)
        return False
