"""Details of single tool calls, by a token from the event stream of an autopilot run."""

from typing import Annotated

from litestar import get
from litestar.di import NamedDependency
from litestar.params import PathParameter

from khala.api.accounts.authentication import BY_KEY, OPEN_TO_THREAD_TOKENS
from khala.api.context import Context
from khala.api.http.problem_details import documented_errors
from khala.api.runs.types import BlobLink, ToolCallDetail
from khala.domain.access import Caller
from khala.domain.fold import ToolBlock
from khala.domain.parts import BlobRef
from khala.store.runs import detail_tokens

DENIED = ("invalid_input", "unauthorized", "forbidden", "not_found", "rate_limited", "unavailable")
DetailToken = Annotated[str, PathParameter(description="The token from a `task_group_start` event.", max_length=100)]


@get(
    "/autopilot/detail/{token:str}",
    operation_id="readToolCallDetail",
    tags=["Runs"],
    summary="Read the details of a task",
    security=BY_KEY,
    opt={OPEN_TO_THREAD_TOKENS: True},
    response_description="The task, with its result if it has ended.",
    responses=documented_errors(*DENIED),
)
async def detail(
    context: NamedDependency[Context], caller: NamedDependency[Caller], token: DetailToken
) -> ToolCallDetail:
    """Read a tool call with its complete result. The caller must have access. An expired token returns 404."""
    async with context.db.driver() as driver:
        block = await detail_tokens.find(driver, token, caller)
    return _detail(block)


def _detail(block: ToolBlock) -> ToolCallDetail:
    return ToolCallDetail(
        task_id=block.tool_call_id,
        tool=block.tool,
        state=block.state,
        step=block.step,
        args=block.args,
        args_blob=_blob_link(block.args_blob),
        reason=block.reason,
        summary=block.summary,
        output=block.output,
        blob=_blob_link(block.blob),
        duration_ms=block.duration_ms,
    )


def _blob_link(ref: BlobRef | None) -> BlobLink | None:
    if ref is None:
        return None
    return BlobLink(
        blob_id=str(ref.blob_id),
        size=ref.size,
        sha256=ref.sha256,
        media_type=ref.media_type,
        preview=ref.preview,
        name=ref.name,
        url=f"/api/blobs/{ref.blob_id}",
    )
