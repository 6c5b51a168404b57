"""The inputs, outputs and errors of tool calls, and the ids of requests for approval. Without I/O."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

CANCELED = "The call was canceled."


def approval_id(run_id: UUID, digest: str, call_id: str) -> str:
    """Return the id of a request for approval. It names the version of the call that the user sees."""
    return f"{run_id}:{digest}:{call_id}"


def blob_url(blob_id: UUID) -> str:
    """Return the path of a blob's content."""
    return f"/api/blobs/{blob_id}"


def tool_input(call: Any, arguments: Mapping[str, Any]) -> Any:
    """Return the arguments of a call, or a reference to arguments that are not loaded."""
    if call.args is None and call.args_blob is not None:
        return arguments.get(call.tool_call_id) or _reference(call.args_blob)
    return call.args or {}


def tool_output(result: Any) -> Any:
    """Return the output of a call, or a reference to an output that is too large for a part."""
    if result.blob is not None:
        return _reference(result.blob)
    return result.summary if result.output is None else result.output


def error_text(result: Any) -> str:
    """Return the message of a call that failed."""
    return result.output if isinstance(result.output, str) and result.output else result.summary or "The call failed."


def _reference(blob: Any) -> dict[str, Any]:
    found = {"url": blob_url(blob.blob_id), "mediaType": blob.media_type, "size": blob.size, "preview": blob.preview}
    return {"blob": found}
