"""Stores the arguments of tool calls: short ones in the call's part, long ones in a blob."""

from typing import Any

import msgspec
import structlog

from khala.blobs.blob_service import BlobService
from khala.domain import ids
from khala.domain.errors import KhalaError
from khala.domain.flush_policy import replace_unstorable
from khala.domain.parts import BlobRef, ToolCall, json_text
from khala.domain.run_progress import ToolCallProgress
from khala.domain.tools import ToolActor
from khala.models.port import ToolUse
from khala.runs.tool_results import InlineAllowance
from khala.tools.port import ToolError
from khala.tools.validation import arguments

log = structlog.get_logger()

MAX_INLINE_ARGUMENT_BYTES = 2048
"""Bytes of arguments in a part. Longer arguments are stored in a blob."""
MAX_NAME_CHARACTERS = 100
"""Characters of the tool's name in a call's part. A model may call a tool that does not exist, by any name."""


def storable(use: ToolUse) -> ToolUse:
    """The call with unstorable characters replaced, so that people approve exactly the call that is executed."""
    args = msgspec.json.decode(json_text(use.args), type=dict[str, Any])
    return msgspec.structs.replace(use, name=replace_unstorable(use.name), args=args)


class ArgumentStore:
    """Stores and loads the arguments of one run's calls. `inline` bounds the arguments and outputs in its parts."""

    def __init__(self, blob_service: BlobService, inline: InlineAllowance) -> None:
        self._blob_service = blob_service
        self._inline = inline

    async def create_call(
        self, step: int, use: ToolUse, actor: ToolActor, call_id: str | None = None
    ) -> tuple[ToolCall, ToolError | None]:
        """Store the arguments of a new call. Returns its part, and the error if the call can't be executed."""
        call_id = call_id or f"call_{ids.new().hex}"
        call = ToolCall(tool_call_id=call_id, step=step, tool=use.name[:MAX_NAME_CHARACTERS])
        problem = None if use.problem is None else ToolError(use.problem, code="bad_arguments")
        encoded = msgspec.json.encode(use.args)
        if len(encoded) <= MAX_INLINE_ARGUMENT_BYTES and self._inline.take(len(encoded)):
            return msgspec.structs.replace(call, args=use.args), problem
        if len(encoded) > arguments.MAX_ARGS_BYTES:
            message = f"The arguments of a call have at most {arguments.MAX_ARGS_BYTES:,} bytes."
            return call, ToolError(message, code="too_large")
        try:
            return msgspec.structs.replace(call, args_blob=await self._store(encoded, actor)), problem
        except KhalaError as error:
            return call, ToolError(f"The arguments could not be stored: {error.message}", code="unavailable")

    async def load(self, call: ToolCallProgress, actor: ToolActor) -> None:
        """Load arguments that are only in a blob, for example after a take-over. Raises `ToolError` (`unavailable`)."""
        if call.args is not None or call.args_blob is None:
            return
        try:
            blob = await self._blob_service.find(call.args_blob.blob_id, actor.thread_id)
            async with self._blob_service.read(blob) as chunks:
                data = b"".join([chunk async for chunk in chunks])
            call.args = msgspec.json.decode(data, type=dict[str, Any])
        except (KhalaError, msgspec.MsgspecError) as error:
            log.warning("tool_arguments_unreadable", tool=call.tool, error=str(error))
            raise ToolError("The arguments of this call could not be read again.", code="unavailable") from error

    async def _store(self, data: bytes, actor: ToolActor) -> BlobRef:
        assert actor.thread_id is not None
        async with self._blob_service.spool() as spool:
            await spool.write(data)
            return await self._blob_service.put(
                spool, thread_id=actor.thread_id, run_id=actor.run_id, media_type="application/json"
            )
