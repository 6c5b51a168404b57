"""Loads the arguments of calls of a client's own tools that are too large for a part."""

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

import msgspec

from khala.api.blobs.blob_responses import read_whole
from khala.blobs.blob_service import BlobService
from khala.domain.parts import BlobRef, Part, ToolCall


async def load_arguments(
    service: BlobService, thread_id: UUID, functions: Collection[str], parts: Sequence[Part]
) -> dict[str, Any]:
    """Return the arguments by the id of the call. `functions` are the names of the client's own tools.

    Raises `BlobNotFound` and `Unavailable`.
    """
    loaded: dict[str, Any] = {}
    for part in parts if functions else ():
        match part.read() if part.kind == "tool-call" else None:
            case ToolCall(args=None, args_blob=BlobRef() as ref) as call if call.tool in functions:
                blob = await service.find(ref.blob_id, thread_id)
                loaded[call.tool_call_id] = msgspec.json.decode(await read_whole(service, blob))
            case _:
                pass
    return loaded
