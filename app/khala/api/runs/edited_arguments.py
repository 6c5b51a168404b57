"""Checks the decision of a person about a call that waits for approval."""

from typing import Any

import msgspec

from khala.api.validation import check_json
from khala.domain.access import Caller, require_scope
from khala.domain.errors import InvalidInput, PayloadTooLarge, Unavailable
from khala.domain.tools import ToolSpec
from khala.store.tools.approvals import ApprovalDecision, ApprovalQuestion
from khala.tools.port import ToolError
from khala.tools.validation import arguments


async def check_edited_args(question: ApprovalQuestion, args: dict[str, Any]) -> None:
    """Raise `InvalidInput` unless the arguments fit the tool of the pending approval."""
    check_json(args, "editedArgs")
    if len(msgspec.json.encode(args)) > arguments.MAX_ARGS_BYTES:
        raise PayloadTooLarge(f"editedArgs can have at most {arguments.MAX_ARGS_BYTES:,} bytes.")
    try:
        await arguments.check(ToolSpec(name=question.tool, description="", parameters=question.parameters), args)
    except ToolError as problem:
        if problem.code == "unavailable":
            raise Unavailable(problem.message) from problem
        raise InvalidInput(problem.message, path="editedArgs") from problem


def check_reach(decision: ApprovalDecision, caller: Caller) -> None:
    """Raise an error unless the decision may reach further than the call, and the caller's token allows that."""
    if decision.allow == "once":
        return
    if not decision.approved:
        raise InvalidInput("Only an approval can reach further than this call.", path="allow")
    if decision.allow == "thread" and caller.user_id is not None:
        require_scope(caller, "account")
