"""Loads repositories into the caller's workspace over REST. Progress and result are server-sent events."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated
from uuid import UUID

import msgspec
import structlog
from litestar import post
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import BodyKwarg
from litestar.response import Stream

from khala.api.accounts.authentication import BY_ACCOUNT, require_user
from khala.api.context import Context
from khala.api.http.problem_details import documented_errors
from khala.api.http.server_sent_events import KEEP_ALIVE, encode_event, stream_response
from khala.api.openapi.document import example
from khala.api.tools.types import (
    NewRepository,
    RepositoryEvent,
    RepositoryFailed,
    RepositoryLoaded,
    RepositoryProgress,
)
from khala.api.validation import check_text
from khala.domain.access import Caller
from khala.domain.errors import Forbidden, InvalidInput, KhalaError
from khala.domain.tools import ToolActor
from khala.tools.repositories import (
    LoadedRepository,
    LoadProgress,
    RepositoryError,
    RepositoryLoader,
    RepositoryRequest,
)
from khala.tools.tool_registry import ToolRegistry

log = structlog.get_logger()

TOOL = "load_repo"
DENIED = ("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type")
PROGRESS_INTERVAL_SECONDS = 0.25
KEEP_ALIVE_INTERVAL_SECONDS = 10.0
EVENTS = ResponseSpec(
    data_container=str,
    media_type="text/event-stream",
    generate_examples=False,
    description="Events with `type`: any number of `progress`, then one `loaded` or `failed`, which is the last one.",
)


@post(
    "/workspace/repositories",
    tags=["Tools"],
    operation_id="loadRepository",
    summary="Load a repository",
    security=BY_ACCOUNT,
    status_code=200,
    responses=documented_errors(*DENIED, *BODY) | {200: EVENTS},
)
async def load_repository(
    context: NamedDependency[Context],
    caller: NamedDependency[Caller],
    data: Annotated[
        NewRepository, BodyKwarg(examples=example("A repository", url="https://git.example.org/OWNER/REPOSITORY"))
    ],
) -> Stream:
    """Load the text files of a Git repository into a folder of the caller's workspace, as the tool `load_repo` does.

    If the client closes the response before the last event, the load ends and stores nothing.
    """
    user_id = require_user(caller)
    loader = await _offered_loader(context.tools.registry, user_id)
    for name in ("url", "ref", "path", "into"):
        check_text(getattr(data, name) or "", name)
    request = RepositoryRequest(url=data.url, ref=data.ref, path=data.path, into=data.into)
    try:
        loader.address(request)
    except RepositoryError as error:
        raise (Forbidden if error.code == "forbidden" else InvalidInput)(error.message) from error
    return stream_response(_events(loader, user_id, request))


async def _offered_loader(registry: ToolRegistry, user_id: UUID) -> RepositoryLoader:
    """The loader. Raises `Forbidden` if the rules for the tool deny it to this user."""
    offer = await registry.offer(ToolActor(owner_id=user_id, user_id=user_id), [TOOL])
    if TOOL not in offer.tools or registry.repositories is None:
        raise Forbidden(f"The tool {TOOL} is not offered.")
    return registry.repositories


async def _events(loader: RepositoryLoader, user_id: UUID, request: RepositoryRequest) -> AsyncIterator[str]:
    """Encode the latest progress at intervals, and then the end."""
    latest = LoadProgress(stage="downloading")

    def report(progress: LoadProgress) -> None:
        nonlocal latest
        latest = progress

    loading = asyncio.create_task(loader.load(user_id, request, report))
    try:
        sent, silent_seconds = latest, 0.0
        yield _encoded(_progress(latest))
        while not loading.done():
            await asyncio.wait({loading}, timeout=PROGRESS_INTERVAL_SECONDS)
            silent_seconds += PROGRESS_INTERVAL_SECONDS
            if latest != sent:
                sent, silent_seconds = latest, 0.0
                yield _encoded(_progress(latest))
            elif silent_seconds >= KEEP_ALIVE_INTERVAL_SECONDS:
                silent_seconds = 0.0
                yield KEEP_ALIVE
        yield _encoded(_end(loading))
    finally:
        loading.cancel()
        await asyncio.wait({loading})


def _progress(progress: LoadProgress) -> RepositoryProgress:
    return RepositoryProgress(stage=progress.stage, bytes=progress.bytes, files=progress.files)


def _end(loading: asyncio.Task[LoadedRepository]) -> RepositoryLoaded | RepositoryFailed:
    try:
        return RepositoryLoaded(repository=loading.result())
    except RepositoryError as error:
        return RepositoryFailed(code=error.code, message=error.message, retry_after_seconds=error.retry_after_seconds)
    except KhalaError as error:
        return RepositoryFailed(code=error.code, message=error.message)
    except Exception:  # the response has begun: an unexpected error becomes its last event
        log.exception("repository_load_crashed")
        return RepositoryFailed(code="internal", message="The server failed to load the repository.")


def _encoded(event: RepositoryEvent) -> str:
    return encode_event(msgspec.json.encode(event).decode())
