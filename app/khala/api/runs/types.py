"""Request and response bodies of runs."""

from typing import Annotated, Any
from uuid import UUID

from msgspec import Meta

from khala.api.types import ApiStruct
from khala.domain.context import ContextCall
from khala.domain.memories import Memory
from khala.domain.parts import Part
from khala.domain.tools import ApprovalReach


class DecisionRequest(ApiStruct, frozen=True, kw_only=True):
    """The decision on a pending tool call.

    `digest` names the version of the call that the user saw. `editedArgs` replace the arguments of the call. `allow`
    says whether an approval also applies to later calls of the tool: in the run, or in the thread.
    """

    approved: bool
    reason: Annotated[str, Meta(max_length=1000)] | None = None
    edited_args: dict[str, Any] | None = None
    digest: Annotated[str, Meta(max_length=64)] | None = None
    allow: ApprovalReach = "once"


class CancelRequest(ApiStruct, frozen=True, kw_only=True):
    """The reason why a run is canceled, for the log."""

    reason: Annotated[str, Meta(max_length=200)] | None = None


class PartPage(ApiStruct, frozen=True, kw_only=True):
    """Parts of a run. Repeat with `after=nextAfter` until `done`: the run has ended and all its parts were read."""

    items: list[Part]
    next_after: int
    done: bool


class RunCursor(ApiStruct, frozen=True, kw_only=True):
    """One place in a run, as the cursor of each protocol.

    `position` is the number of parts before it. `revision` is the `after` of the thread's feed, `offset` the offset in
    the thread's stream, `eventId` the last event of AG-UI, and `sequenceNumber` that of the Responses API. `done`: the
    run has ended, and nothing follows.
    """

    thread_id: UUID
    run_id: UUID
    position: int
    revision: int
    offset: str
    event_id: str
    sequence_number: int
    done: bool


class RunContext(ApiStruct, frozen=True, kw_only=True):
    """The contexts of a run's model calls, in order."""

    calls: list[ContextCall]


class UsedMemory(ApiStruct, frozen=True, kw_only=True):
    """A memory that the model was told: the text then, cut if it is long, and the memory now.

    `memory` is absent if it was forgotten, or if it is not the caller's. If it was corrected, it is the newest version.
    """

    id: UUID
    text: str
    score: float
    memory: Memory | None = None


class BlobLink(ApiStruct, frozen=True, kw_only=True):
    """A blob and the URL of its content."""

    blob_id: str
    size: int
    sha256: str
    media_type: str
    preview: str = ""
    name: str | None = None
    url: str


class ToolCallDetail(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    """A tool call with its complete result.

    The result is `output`, or `blob` if it is large. Both are null until there is a result. Large arguments are in
    `args_blob`.
    """

    task_id: str
    tool: str
    state: str
    step: int
    args: dict[str, Any] | None
    args_blob: BlobLink | None
    reason: str | None
    summary: str | None
    output: Any
    blob: BlobLink | None
    duration_ms: int | None
