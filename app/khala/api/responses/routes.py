"""`/v1/responses`: runs in the protocol of OpenAI's Responses API, for unmodified OpenAI clients."""

from functools import partial
from typing import Annotated, Any, Literal

from litestar import Controller, Request, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import PathParameter, QueryParameter
from structlog.contextvars import bind_contextvars

from khala.api.accounts.authentication import require_user
from khala.api.context import Context
from khala.api.http.server_sent_events import stream_response
from khala.api.openai.request_body import MAX_COMPLETION_BODY_BYTES
from khala.api.openai.responses import CANCEL_TIMEOUT_SECONDS
from khala.api.openai.routes import wait_for_disconnect
from khala.api.openai.types import JsonObject
from khala.api.responses import creation
from khala.api.responses.response_header import RESPONSE_PREFIX, parse_id
from khala.api.responses.response_reader import ResponseReader
from khala.api.responses.stored_items import MAX_PAGE_ITEMS, page, read_input_items
from khala.domain.access import Action, Caller
from khala.domain.errors import Conflict, InvalidInput, NotFound, RunNotFound, ThreadNotFound
from khala.store.runs import response_runs, runs
from khala.store.runs.response_runs import ResponseRun
from khala.store.sharing import access
from khala.store.threads import threads

MAX_SEQUENCE_NUMBER = 2**31 - 1
ResponseId = Annotated[str, PathParameter(description="The response's id.", max_length=200)]
StartingAfter = Annotated[
    int | None,
    QueryParameter(ge=0, le=MAX_SEQUENCE_NUMBER, description="The number of the last event that you have."),
]
IsStream = Annotated[bool, QueryParameter(description="Whether to send events.")]
Order = Annotated[Literal["asc", "desc"], QueryParameter(description="The order of the items.")]
AfterItem = Annotated[str | None, QueryParameter(description="The id of the last item that you have.", max_length=200)]
Limit = Annotated[int, QueryParameter(ge=1, le=MAX_PAGE_ITEMS, description="The maximum number of items.")]


class ResponseController(Controller):
    """Responses of OpenAI's protocol."""

    path = "/responses"
    include_in_schema = False
    opt = {"lenient": True}  # noqa: RUF012 (Litestar reads it.)

    @post("/", status_code=200, request_max_body_size=MAX_COMPLETION_BODY_BYTES)
    async def create(
        self, request: Request[Any, Any, Any], context: NamedDependency[Context], caller: NamedDependency[Caller]
    ) -> Response[Any]:
        """Answer the input with a run of a thread. The run continues if the client disconnects."""
        require_user(caller)
        body, accepted = await creation.create(request, context, caller)
        sent = accepted.sent
        bind_contextvars(thread_id=str(sent.thread_id), run_id=str(sent.run_id))
        async with context.db.snapshot() as driver:
            found = await response_runs.read(driver, sent.run_id, caller)
        reader = ResponseReader(context, caller, found, queued_at=sent.revision)
        headers = {"x-thread-id": str(sent.thread_id), "x-run-id": str(sent.run_id)}
        if body.stream:
            return stream_response(reader.events(), headers)
        result = await (reader.read() if body.background else reader.wait(partial(wait_for_disconnect, request)))
        return Response(result, headers=headers, media_type="application/json")

    @get("/{response_id:str}")
    async def retrieve(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        response_id: ResponseId,
        stream: IsStream = False,  # noqa: FBT002
        starting_after: StartingAfter = None,
    ) -> Response[Any]:
        """Return the response as it is, or its events after a sequence number, up to its end."""
        reader = ResponseReader(context, caller, await _find(context, caller, response_id))
        if stream:
            return stream_response(reader.events(-1 if starting_after is None else starting_after))
        if starting_after is not None:
            raise InvalidInput("Only a stream starts after an event. Send stream=true.", path="starting_after")
        return Response(await reader.read(), media_type="application/json")

    @post("/{response_id:str}/cancel", status_code=200)
    async def cancel(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], response_id: ResponseId
    ) -> Response[JsonObject]:
        """Cancel the response. Its text so far is kept. One that has ended does not change.

        If its executor takes more than five seconds to end it, the result is the response as it is then.
        """
        found = await _find(context, caller, response_id)
        await runs.cancel(context.db, found.run.id, caller)
        reader = ResponseReader(context, caller, found)
        return Response(await reader.read_end(CANCEL_TIMEOUT_SECONDS), media_type="application/json")

    @delete("/{response_id:str}", status_code=200)
    async def delete(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], response_id: ResponseId
    ) -> Response[JsonObject]:
        """Delete the thread of the response. It may have no other answers."""
        found = await _find(context, caller, response_id)
        async with context.db.driver() as driver:
            await access.authorize(driver, found.run.thread_id, caller, Action.DELETE_THREAD)
        if found.runs_of_thread > 1:
            raise Conflict("The thread of this response has other answers. Delete the conversation instead.")
        await threads.remove(context.db, found.run.thread_id, caller)
        deleted = {"id": response_id, "object": "response", "deleted": True}
        return Response(deleted, media_type="application/json")

    @get("/{response_id:str}/input_items")
    async def input_items(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        response_id: ResponseId,
        order: Order = "desc",
        after: AfterItem = None,
        limit: Limit = 20,
    ) -> Response[JsonObject]:
        """Return a page of the items of the response's input."""
        found = await _find(context, caller, response_id)
        async with context.db.snapshot() as driver:
            items = await read_input_items(driver, found)
        return Response(page(items, order=order, after=after, limit=limit), media_type="application/json")


async def _find(context: Context, caller: Caller, text: str) -> ResponseRun:
    require_user(caller)
    run_id = parse_id(text, RESPONSE_PREFIX)
    try:
        async with context.db.snapshot() as driver:
            found = await response_runs.read(driver, run_id, caller)
    except (RunNotFound, ThreadNotFound) as error:
        raise NotFound("There is no response with this id.") from error
    bind_contextvars(thread_id=str(found.run.thread_id), run_id=str(run_id))
    return found
