"""`/v1`: chat completions and models, so that OpenAI's own clients work with Khala as they are."""

from functools import partial
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import PathParameter
from litestar.response import Stream
from structlog.contextvars import bind_contextvars

from khala.api.accounts.authentication import require_user
from khala.api.context import Context
from khala.api.openai import completion_options, history, ignored_fields, response_streams
from khala.api.openai.completion_requests import ask
from khala.api.openai.model_list import Model, Models
from khala.api.openai.request_body import MAX_COMPLETION_BODY_BYTES
from khala.api.openai.request_body import read as asking_of
from khala.api.openai.response_streams import CompletionRequest
from khala.api.tools import client_functions
from khala.domain import idempotency, ids
from khala.domain.access import Caller
from khala.domain.idempotency import RequestIdentity

ModelName = Annotated[str, PathParameter(description="The model's name, as the list tells it.")]


@post(
    "/chat/completions",
    status_code=200,
    include_in_schema=False,
    request_max_body_size=MAX_COMPLETION_BODY_BYTES,
    lenient=True,
)
async def complete(
    request: Request[Any, Any, Any], context: NamedDependency[Context], caller: NamedDependency[Caller]
) -> Response[Any]:
    """Answer the conversation, as a run of a thread that can be watched, and goes on if nobody listens any more."""
    require_user(caller)
    body = await request.body()
    asked = asking_of(body)
    options = completion_options.read(asked, request.headers, context)
    await client_functions.check(options.run.functions, every="tools", each="tools[{}].function")
    options = msgspec.structs.replace(
        options,
        identity=_identity(request, body, caller),
        ignored=ignored_fields.places(await request.json(), asked, options.thread_id),
    )
    accepted = await ask(context, caller, history.read(asked.messages), options)
    sent = accepted.sent
    bind_contextvars(thread_id=str(sent.thread_id), run_id=str(sent.run_id))
    asking = CompletionRequest(context=context, caller=caller, options=options, accepted=accepted)
    headers = {"x-thread-id": str(sent.thread_id), "x-run-id": str(sent.run_id)}
    if not options.stream:
        whole = await response_streams.whole(asking, partial(_hung_up, request))
        return Response(whole, headers=headers, media_type="application/json")
    told = response_streams.events(asking) if options.events else response_streams.chunks(asking)
    headers |= {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return Stream(told, media_type="text/event-stream", headers=headers)


@get("/models", include_in_schema=False, lenient=True)
async def list_models(context: NamedDependency[Context], caller: NamedDependency[Caller]) -> Models:
    """The models that may be asked for by name."""
    require_user(caller)
    return Models(data=[_model(name) for name in (completion_options.DEFAULTS[0], *context.models.listed)])


@get("/models/{name:path}", include_in_schema=False, lenient=True)
async def read_model(context: NamedDependency[Context], caller: NamedDependency[Caller], name: ModelName) -> Model:
    """One of them, or one that a pattern of the operator's allows."""
    require_user(caller)
    known = name.removeprefix("/")
    completion_options.model_named(known, context)
    return _model(known)


def _model(name: str) -> Model:
    return Model(id=name, created=0, owned_by=name.partition(":")[0])


def _identity(request: Request[Any, Any, Any], body: bytes, caller: Caller) -> RequestIdentity | None:
    """What tells whether this is a request that was sent before."""
    return idempotency.identity(
        caller,
        body,
        request.headers,
        completion_options.HEADERS,
        received=request.scope["state"]["began"],
        run_id=ids.new(),
    )


async def _hung_up(request: Request[Any, Any, Any]) -> None:
    """Returns when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        continue
