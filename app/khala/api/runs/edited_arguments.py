"""Checks the arguments with which a person replaces those of a call that waits for approval."""

from typing import Any

import msgspec

from khala.api.validation import check_json
from khala.domain.errors import InvalidInput, PayloadTooLarge, Unavailable
from khala.domain.tools import ToolSpec
from khala.store.tools.approvals import ApprovalQuestion
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
