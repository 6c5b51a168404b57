"""`/v1`: chat completions and models in OpenAI's protocol, for unmodified OpenAI clients."""

from functools import partial
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import PathParameter
from structlog.contextvars import bind_contextvars

from khala.api.accounts.authentication import require_user
from khala.api.context import Context
from khala.api.http.server_sent_events import stream_response
from khala.api.openai import completion_options, request_body, responses
from khala.api.openai.history import read_history
from khala.api.openai.request_body import MAX_COMPLETION_BODY_BYTES
from khala.api.openai.responses import CompletionRequest
from khala.api.openai.submission import Submission
from khala.api.openai.types import ListedModel, ListedModels
from khala.api.runs import option_checks
from khala.api.tools import client_functions
from khala.domain import idempotency, ids
from khala.domain.access import Caller
from khala.domain.idempotency import RequestIdentity

ModelName = Annotated[str, PathParameter(description="The model's name, as in the list.")]


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
    """Answer the conversation with a run of a thread. The run continues if the client disconnects."""
    require_user(caller)
    body = await request.body()
    parsed = request_body.parse(body)
    options = completion_options.read_options(parsed, request.headers, context)
    await client_functions.check(options.run.functions, list_path="tools", item_path="tools[{}].function")
    await option_checks.check(options.run, context, completion_options.path_of)
    options = msgspec.structs.replace(
        options,
        identity=_identity(request, body, caller),
        ignored=(
            *request_body.ignored_paths(await request.json(), parsed, options.thread_id),
            *option_checks.without_effect(options.run, context),
        ),
    )
    submission = Submission(context=context, caller=caller, history=read_history(parsed.messages), options=options)
    accepted = await submission.submit()
    sent = accepted.sent
    bind_contextvars(thread_id=str(sent.thread_id), run_id=str(sent.run_id))
    further = await submission.add_choices(accepted)
    completion = CompletionRequest(context=context, caller=caller, options=options, accepted=accepted, further=further)
    headers = {"x-thread-id": str(sent.thread_id), "x-run-id": str(sent.run_id)}
    if not options.stream:
        result = await responses.complete(completion, partial(wait_for_disconnect, request))
        return Response(result, headers=headers, media_type="application/json")
    stream = responses.stream_events if options.events else responses.stream_chunks
    return stream_response(stream(completion), headers)


@get("/models", include_in_schema=False, lenient=True)
async def list_models(context: NamedDependency[Context], caller: NamedDependency[Caller]) -> ListedModels:
    """List the models that a request may name."""
    require_user(caller)
    return ListedModels(
        data=[_model(name) for name in (completion_options.DEFAULT_MODEL_NAMES[0], *context.models.listed)]
    )


@get("/models/{name:path}", include_in_schema=False, lenient=True)
async def read_model(
    context: NamedDependency[Context], caller: NamedDependency[Caller], name: ModelName
) -> ListedModel:
    """Return a model of the list, or one that a pattern of the operator allows."""
    require_user(caller)
    requested = name.removeprefix("/")
    completion_options.resolve_model(requested, context)
    return _model(requested)


def _model(name: str) -> ListedModel:
    return ListedModel(id=name, created=0, owned_by=name.partition(":")[0])


def _identity(request: Request[Any, Any, Any], body: bytes, caller: Caller) -> RequestIdentity | None:
    """Return the identity by which a retry of this request is recognised."""
    return idempotency.identity(
        caller,
        body,
        request.headers,
        completion_options.HEADERS,
        received=request.scope["state"]["began"],
        run_id=ids.new(),
    )


async def wait_for_disconnect(request: Request[Any, Any, Any]) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        continue
