"""Loads the arguments of calls that are too large for a part: from blobs, and those that approvers edited."""

from collections.abc import Sequence
from uuid import UUID

from khala.api.blobs.blob_responses import read_whole
from khala.api.context import Context
from khala.api.responses.item_values import encode_arguments
from khala.domain.parts import BlobRef, Part, ToolCall, ToolStatus
from khala.store.tools import approvals


class LargeArguments:
    """Loads the arguments of the calls of one run, as its parts are read in order."""

    def __init__(self, context: Context, thread_id: UUID, run_id: UUID) -> None:
        self._context = context
        self._thread_id = thread_id
        self._run_id = run_id
        self._asked: set[str] = set()

    async def load(self, parts: Sequence[Part]) -> dict[int, str]:
        """Return the arguments that these parts lack, as JSON, by the part's seq."""
        loaded: dict[int, str] = {}
        for part in parts:
            data = part.read() if part.kind in ("tool-call", "tool-status") else None
            match data:
                case ToolCall(args=None, args_blob=BlobRef() as blob):
                    loaded[part.seq] = await self._read(blob)
                case ToolStatus(state="blocked"):
                    self._asked.add(data.tool_call_id)
                case ToolStatus(state="running", args=None) if data.tool_call_id in self._asked:
                    self._asked.remove(data.tool_call_id)
                    edited = await self._edited(data.tool_call_id)
                    loaded |= {} if edited is None else {part.seq: edited}
                case _:
                    pass
        return loaded

    async def _read(self, reference: BlobRef) -> str:
        service = self._context.blobs.service
        blob = await service.find(reference.blob_id, self._thread_id)
        return (await read_whole(service, blob)).decode()

    async def _edited(self, call_id: str) -> str | None:
        """Return the arguments that the approver edited, if they did."""
        async with self._context.db.snapshot() as driver:
            approval = (await approvals.of_run(driver, self._thread_id, self._run_id)).get(call_id)
        edited = None if approval is None else approval.edited_args
        return None if edited is None else encode_arguments(edited)
