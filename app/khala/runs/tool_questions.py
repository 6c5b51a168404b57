"""Asks a person what a running tool call wants to know. A question is answered like an approval, by the same commands.

The question is stored, and its id depends on the call and the question alone. So a call that is repeated after its
executor was lost, and asks the same again, gets the answer that was given meanwhile.
"""

from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from khala.domain.parts import ToolStatus
from khala.domain.run_progress import ToolCallProgress
from khala.domain.tools import QUESTION_MARK, ToolSpec, call_digest
from khala.runs import tool_results
from khala.runs.approval_gate import ApprovalDecisions
from khala.runs.tool_call_recorder import ToolCallRecorder
from khala.store.runs.run_buffer import LeaseLost
from khala.store.tools.approvals import Approval
from khala.tools.port import AskUser, ToolError, UserAnswer, UserQuestion
from khala.tools.validation import arguments

QUESTION_SECONDS = 600.0
"""Time for a person to answer. The executor waits with the call, so it is shorter than that of an approval."""
GRACE_SECONDS = 5.0
"""Time for an answer in the last moment to arrive."""
NO_FIELDS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
CANCEL_REASON = "cancel"
"""The reason of a denial that only closes the question."""


class ToolQuestions:
    """The questions of the calls of one run."""

    def __init__(self, recorder: ToolCallRecorder, decisions: ApprovalDecisions, seconds: float) -> None:
        self._recorder = recorder
        self._decisions = decisions
        self._seconds = seconds

    def bound_to(self, call: ToolCallProgress) -> AskUser:
        """Return the function by which this call asks. The time of an answer is bounded."""
        asked: Counter[str] = Counter()

        async def ask(question: UserQuestion) -> UserAnswer:
            content = _content(question)
            asked[call_digest(call.tool, content)] += 1
            # The same question may be asked again. Then it is another one.
            number = asked[call_digest(call.tool, content)]
            return await self._ask(call, question, content | ({"number": number} if number > 1 else {}))

        return ask

    async def _ask(self, call: ToolCallProgress, question: UserQuestion, content: dict[str, Any]) -> UserAnswer:
        digest = call_digest(call.tool, content)
        question_id = f"{call.id}{QUESTION_MARK}{digest[:16]}"
        schema = NO_FIELDS if question.schema is None else question.schema
        decided = self._decisions.by_call_id.get(question_id)
        if decided is None:
            status = ToolStatus(
                tool_call_id=call.id,
                state="running",
                reason=tool_results.one_line(f"{question.source} asks: {question.message}"),
                digest=digest,
                expires_at=datetime.now(UTC) + timedelta(seconds=self._seconds),
            )
            self._recorder.ask(status, question_id, call, content, schema)
            try:
                decided = await self._decisions.wait_for(question_id, self._seconds + GRACE_SECONDS)
            finally:
                with suppress(LeaseLost):  # The buffer stops the run.
                    self._recorder.add(ToolStatus(tool_call_id=call.id, state="running"))
        return await _answer(decided, schema, is_form=question.schema is not None)


def _content(question: UserQuestion) -> dict[str, Any]:
    """The question as people see it, in place of the arguments of a call."""
    if question.schema is None:
        asked: dict[str, Any] = {"url": question.url}
    else:
        # Postgres stores no order of the properties.
        asked = {"schema": question.schema, "fields": list(question.schema["properties"])}
    return {"question": question.message, "server": question.source, **asked}


async def _answer(decided: Approval | None, schema: dict[str, Any], *, is_form: bool) -> UserAnswer:
    if decided is None or decided.state == "expired" or (decided.state == "denied" and decided.reason == CANCEL_REASON):
        return UserAnswer(action="cancel")
    if decided.state == "denied":
        return UserAnswer(action="decline")
    if not is_form:
        return UserAnswer(action="accept")
    content = decided.edited_args or {}
    try:
        # An approval without contents is one of a client that does not show the form.
        await arguments.check(ToolSpec(name=decided.tool, description="", parameters=schema), content)
    except ToolError:
        return UserAnswer(action="cancel")
    return UserAnswer(action="accept", content=content)
