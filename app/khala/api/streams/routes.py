"""`/v1/stream/{name}`: creates, appends to, reads and deletes streams, as the Durable Streams protocol says."""

from typing import Annotated, Any

from litestar import Controller, Request, Response, delete, get, head, post, put
from litestar.di import NamedDependency
from litestar.params import PathParameter
from litestar.response import Stream

from khala.api.context import Context
from khala.api.http.request_origin import base_url
from khala.api.streams import browser_isolation, stream_reader
from khala.api.streams import stream_headers as names
from khala.api.streams.append_responses import append_response
from khala.api.streams.stream_access import space_of
from khala.domain.access import Caller
from khala.domain.errors import InvalidInput
from khala.domain.streams import offsets, stream_names
from khala.domain.streams.appends import StreamAppend
from khala.store.streams import creation, removal, stream_rows
from khala.store.streams.stream_rows import StoredStream, usable

MAX_APPEND_BYTES = 4 << 20
"""Bytes of one request's body."""

StreamName = Annotated[str, PathParameter(description="The name of the stream. It may contain slashes.")]


class StreamController(Controller):
    """Streams that clients create."""

    path = "/{name:path}"
    include_in_schema = False
    response_headers = browser_isolation.HEADERS
    guards = (browser_isolation.refuse_code,)
    request_max_body_size = MAX_APPEND_BYTES

    @put("/", raw_body=True, lenient=True)
    async def create(
        self, request: Request[Any, Any, Any], context: NamedDependency[Context], caller: NamedDependency[Caller],
        name: StreamName,
    ) -> Response[bytes]:  # fmt: skip
        """Create the stream, or a fork of another one. The same request again finds it."""
        space = space_of(context, caller)
        new = names.new_stream(request.headers, _name(name), await request.body())
        done = await creation.create(context.db, space, new, context.streams.limits)
        headers = _metadata(done.stream)
        if done.created:
            headers["Location"] = base_url(request, context.origins) + request.scope["raw_path"].decode("latin-1")
        return Response(b"", status_code=201 if done.created else 200, headers=headers)

    @post("/", raw_body=True, lenient=True)
    async def append(
        self, request: Request[Any, Any, Any], context: NamedDependency[Context], caller: NamedDependency[Caller],
        name: StreamName,
    ) -> Response[Any]:  # fmt: skip
        """Append the body, close the stream, or both."""
        space, body = space_of(context, caller), await request.body()
        append = StreamAppend(
            body=body,
            content_type=request.headers.get("content-type"),
            close=names.closes(request.headers),
            writer_seq=names.writer_seq(request.headers),
            claim=names.claim(request.headers),
        )
        if not body and not append.close:
            raise InvalidInput(f"Send contents to append, or {names.CLOSED}: true.")
        if body and not append.content_type:
            raise InvalidInput("Send the Content-Type of the stream.", path="Content-Type")
        return append_response(await context.streams.writer.append(space, _name(name), append))

    @get("/", lenient=True)
    async def read(
        self, request: Request[Any, Any, Any], context: NamedDependency[Context], caller: NamedDependency[Caller],
        name: StreamName,
    ) -> Response[bytes] | Stream:  # fmt: skip
        """Read the stream from an offset on, and wait for more if the request asks for it."""
        space, query = space_of(context, caller), stream_reader.parse_query(request)
        reader = stream_reader.StreamReader(context, space, _name(name), query)
        return await reader.respond(request.headers.get("if-none-match"))

    @head("/", lenient=True)
    async def inspect(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], name: StreamName
    ) -> Response[None]:
        """Return the end of the stream, its expiry, and whether it is closed. It does not count as a use."""
        space = space_of(context, caller)
        async with context.db.driver() as driver:
            stream = usable(await stream_rows.find(driver, space, _name(name)))
        return Response(None, headers=_metadata(stream) | {"Cache-Control": "no-store"})

    @delete("/", status_code=204, lenient=True)
    async def remove(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], name: StreamName
    ) -> None:
        """Delete the stream. Forks of it keep what they have inherited."""
        await removal.delete(context.db, space_of(context, caller), _name(name))


def _name(path: str) -> str:
    name = stream_names.validated_name(path)
    if stream_names.is_reserved(name):
        raise InvalidInput("Names of streams do not begin with __ds or threads.")
    return name


def _metadata(stream: StoredStream) -> dict[str, str]:
    headers = {
        "Content-Type": stream.state.content_type,
        names.NEXT_OFFSET: offsets.format_offset(stream.state.tail),
    }
    if stream.state.closed:
        headers[names.CLOSED] = "true"
    if stream.ttl_seconds is not None:
        headers[names.TTL] = str(stream.ttl_seconds)
    elif stream.expires_at is not None:
        headers[names.EXPIRES_AT] = names.format_time(stream.expires_at)
    return headers
