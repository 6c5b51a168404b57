"""`/api/ag-ui`: the endpoint of AG-UI's `HttpAgent` and of TanStack AI's connections."""

from typing import Annotated, Any

from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import BodyKwarg, PathParameter, QueryParameter
from litestar.response import Stream
from structlog.contextvars import bind_contextvars

from khala.api.accounts.authentication import BY_KEY, OPEN_TO_THREAD_TOKENS
from khala.api.ag_ui.event_stream import EventCursor, EventStream, parse_event_id
from khala.api.ag_ui.submission import AgentRun, AgentSubmission
from khala.api.ag_ui.threads import connection, hydrated, joined
from khala.api.ag_ui.types import MAX_ID_CHARACTERS, AgentRequest
from khala.api.chats.chat_ids import thread_id_of
from khala.api.chats.chat_runs import find_active_run
from khala.api.context import Context
from khala.api.http.problem_details import documented_errors
from khala.api.http.server_sent_events import HEADERS, stream_response
from khala.domain.access import Action, Caller
from khala.domain.errors import InvalidInput
from khala.store.runs import runs

MAX_BODY_BYTES = 8 << 20
"""Includes files, which the body contains in base64."""
DENIED = ("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable")
LINES = "application/x-ndjson"
ThreadName = Annotated[
    str | None, QueryParameter(name="threadId", max_length=MAX_ID_CHARACTERS, description="The client's thread id.")
]
RunName = Annotated[
    str | None, QueryParameter(name="runId", max_length=MAX_ID_CHARACTERS, description="The client's run id.")
]
After = Annotated[str | None, QueryParameter(description="The id of the last event that the client has.")]


class AgUiController(Controller):
    """Runs of AG-UI and TanStack AI clients."""

    path = "/ag-ui"
    tags = ("AG-UI",)
    security = BY_KEY

    @post(
        ["/", "/ndjson"],
        opt={OPEN_TO_THREAD_TOKENS: True},
        status_code=200,
        include_in_schema=False,
        request_max_body_size=MAX_BODY_BYTES,
        lenient=True,
    )
    async def run(
        self,
        request: Request[Any, Any, Any],
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        data: Annotated[AgentRequest, BodyKwarg()],
    ) -> Stream:
        """Answer the last message with a run of the thread. The run continues if the client disconnects."""
        last = parse_event_id(request.headers.get("last-event-id"))
        named = request.headers.get("x-run-id")
        if named is not None and named != data.run_id:
            raise InvalidInput("X-Run-Id and runId differ.", path="runId")
        submission = AgentSubmission(context, caller, data, request.headers.get("x-anon-key"))
        agent_run = await submission.accept()
        cursor = None if last is None else EventCursor(last=last)
        return _stream(request, EventStream(context, caller, agent_run, cursor=cursor), agent_run)

    @get(["/", "/ndjson"], include_in_schema=False, opt={OPEN_TO_THREAD_TOKENS: True})
    async def read(
        self,
        request: Request[Any, Any, Any],
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_name: ThreadName = None,
        run_name: RunName = None,
        after: After = None,
        offset: Annotated[str | None, QueryParameter(description="`-1` for a replay from the start.")] = None,
        limit: Annotated[int, QueryParameter(ge=1, le=200, description="The maximum number of messages.")] = 100,
        before: Annotated[str | None, QueryParameter(description="The cursor of the page before.")] = None,
    ) -> Response[Any] | Stream:
        """Join a run (`runId`), connect to a thread's newest run, or read the thread as JSON (`threadId`)."""
        if run_name is not None:
            last = parse_event_id(request.headers.get("last-event-id") or after)
            agent_run = await joined(context, caller, run_name)
            cursor = None if last is None else EventCursor(last=last, reopens=after is not None)
            return _stream(request, EventStream(context, caller, agent_run, cursor=cursor), agent_run)
        if thread_name is None:
            raise InvalidInput("Send threadId or runId.", path="threadId")
        if "text/event-stream" in request.headers.get("accept", ""):
            stream = await connection(context, caller, thread_name, parse_event_id(after))
            return stream_response(stream)
        return Response(await hydrated(context, caller, thread_name, limit=limit, before=before))

    @post(
        "/{thread_name:str}/stop",
        operation_id="stopAgent",
        summary="Cancel the answer that is being written",
        status_code=204,
        responses=documented_errors(*DENIED),
    )
    async def stop(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_name: Annotated[str, PathParameter(description="The client's thread id.", max_length=MAX_ID_CHARACTERS)],
    ) -> None:
        """Cancel the newest answer, if it is being written. Its text so far is kept."""
        active = await find_active_run(context, caller, thread_id_of(thread_name, caller), Action.CANCEL_RUN)
        if active is not None:
            await runs.cancel(context.db, active.id, caller)


def _stream(request: Request[Any, Any, Any], stream: EventStream, agent_run: AgentRun) -> Stream:
    run = agent_run.run
    bind_contextvars(thread_id=str(run.thread_id), run_id=str(run.run_id))
    headers = {"x-thread-id": str(run.thread_id), "x-run-id": str(run.run_id)}
    if request.url.path.rstrip("/").endswith("/ndjson"):
        return Stream(stream.lines(), media_type=LINES, headers=HEADERS | headers)
    return stream_response(stream.server_sent_events(), headers)
