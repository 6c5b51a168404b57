"""`/api/runs/{id}/cursor`: converts the cursor of one protocol to those of the others."""

from typing import Annotated

from litestar import get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from khala.api.accounts.authentication import BY_KEY
from khala.api.ag_ui.event_stream import parse_event_id
from khala.api.ag_ui.submission import evented
from khala.api.context import Context
from khala.api.cursors.positions import AgentEventPositions, ResponseEventPositions
from khala.api.http.path_parameters import RunId
from khala.api.http.problem_details import documented_errors
from khala.api.responses.response_header import header
from khala.api.runs.run_follower import read_parts
from khala.api.runs.types import RunCursor
from khala.domain.access import Caller
from khala.domain.chat import ACTIVE
from khala.domain.errors import RunNotFound
from khala.domain.streams import offsets
from khala.store.runs import part_revisions, response_runs, run_lookups

DENIED = ("invalid_input", "unauthorized", "forbidden", "run_not_found", "rate_limited", "unavailable")
MAX_COUNT = 2**31 - 1
Position = Annotated[int | None, QueryParameter(le=MAX_COUNT, ge=0, description="The number of parts that you have.",
                                                schema_extra={"minimum": 0})]  # fmt: skip
AgentEventId = Annotated[
    str | None,
    QueryParameter(name="eventId", pattern=r"^[0-9]{1,9}\.[0-9]{1,9}$", description="The id of the last AG-UI event."),
]
SequenceNumber = Annotated[
    int | None,
    QueryParameter(name="sequenceNumber", le=MAX_COUNT, ge=0, schema_extra={"minimum": 0},
                   description="The `sequence_number` of the last event of the response."),
]  # fmt: skip


@get(
    "/runs/{run_id:uuid}/cursor",
    operation_id="readCursor",
    summary="Convert a cursor to other protocols",
    response_description="The same place, as the cursor of each protocol.",
    tags=["Runs"],
    security=BY_KEY,
    responses=documented_errors(*DENIED),
)
async def read_cursor(
    context: NamedDependency[Context],
    caller: NamedDependency[Caller],
    run_id: RunId,
    position: Position = None,
    event_id: AgentEventId = None,
    sequence_number: SequenceNumber = None,
) -> RunCursor:
    """Return the cursors at which a client continues over another protocol.

    Of several cursors, the earliest counts. Without one, the place is the end of the parts that are stored.
    """
    async with context.db.snapshot() as driver:
        response = await response_runs.read(driver, run_id, caller)
        thread_id = response.run.thread_id
        found = await run_lookups.by_id(driver, thread_id, run_id)
        if found is None:
            raise RunNotFound("There is no such run.")
        parts = await read_parts(driver, thread_id, run_id)
        events = AgentEventPositions(evented(found, str(thread_id), str(run_id)), parts)
        responses = ResponseEventPositions(header(thread_id, run_id, response.options), parts)
        last = parse_event_id(event_id)
        given = [
            len(parts),
            *([] if position is None else [position]),
            *([] if last is None else [events.position(last)]),
            *([] if sequence_number is None else [responses.position(sequence_number)]),
        ]
        place = min(given)
        revision = await part_revisions.revision_at(driver, thread_id, run_id, place)
    number, index = events.event_id(place)
    return RunCursor(
        thread_id=thread_id,
        run_id=run_id,
        position=place,
        revision=revision,
        offset=offsets.format_offset(revision),
        event_id=f"{number}.{index}",
        sequence_number=responses.sequence_number(place),
        done=response.run.status not in ACTIVE and place == len(parts),
    )
