"""The resources that a caller is offered over MCP: the application's, files of the workspace, memories, and blobs.

A kind of Khala's own resources is offered where the tool that reads it is offered, so groups, tokens and rules apply to
both.
"""

import base64
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args
from urllib.parse import quote, unquote
from uuid import UUID

import mcp_types as types
import msgspec

from khala.api.blobs.blob_responses import read_whole
from khala.api.blobs.blobs import find_readable_blob
from khala.api.context import Context
from khala.api.mcp.app_contents import McpAppContents, describe_resource, describe_template
from khala.api.mcp.offered_tools import McpToolCatalog
from khala.api.mcp.resource_contents import MAX_RESOURCE_BYTES, SCHEME, resource_contents
from khala.api.memories.memories import may_change
from khala.blobs.content_type import ContentSniffer
from khala.domain.access import Action, Caller
from khala.domain.errors import InvalidInput, NotFound, PayloadTooLarge
from khala.domain.memories import Memory
from khala.store.blobs import blobs
from khala.store.blobs.blobs import Blob
from khala.store.memories import memories
from khala.store.postgres.database import Driver
from khala.store.sharing import access
from khala.store.tools import workspace_files
from khala.store.tools.workspace_files import WorkspaceEntry
from khala.tools import paths
from khala.tools.port import ToolError

OwnKind: TypeAlias = Literal["files", "memories", "blobs"]
"""The first part of the URI of a resource of Khala, `khala://KIND/…`."""
OWN_KINDS: tuple[OwnKind, ...] = get_args(OwnKind)
ResourceKind: TypeAlias = Literal["app", "files", "memories", "blobs"]
"""The kinds in the order of the list. `app` are the resources of the application."""
KINDS: tuple[ResourceKind, ...] = get_args(ResourceKind)
READING_TOOLS: dict[OwnKind, str] = {"files": "read_file", "memories": "memory_list", "blobs": "read_blob"}
PAGE_SIZE = 100
"""Resources of one page of the list."""
MAX_NAME_CHARACTERS = 100
MAX_CURSOR_CHARACTERS = 8_192

TEMPLATES: dict[OwnKind, types.ResourceTemplate] = {
    "files": types.ResourceTemplate(
        name="file",
        title="File",
        uri_template="khala://files/{+path}",
        description="A file of the account's workspace.",
    ),
    "memories": types.ResourceTemplate(
        name="memory",
        title="Memory",
        uri_template="khala://memories/{id}",
        description="What is remembered for the account, with its origin and use.",
        mime_type="application/json",
    ),
    "blobs": types.ResourceTemplate(
        name="blob",
        title="Blob",
        uri_template="khala://blobs/{id}",
        description="An uploaded file or a large result of a tool, in a thread that the caller may read.",
    ),
}


class ResourcePage(msgspec.Struct, frozen=True):
    """A page of a list. `next` stands for the last item that was looked at; None if there are no more."""

    resources: list[types.Resource]
    next: str | None


class McpResources:
    """The resources that one request is offered. The methods raise `KhalaError`."""

    def __init__(self, context: Context, caller: Caller, catalog: McpToolCatalog, app: McpAppContents) -> None:
        self._context = context
        self._caller = caller
        self._catalog = catalog
        self._app = app

    async def templates(self) -> list[types.ResourceTemplate]:
        """The templates of the resources that the caller is offered: those of the application first."""
        resources = (await self._app.resources()).values()
        of_app = [describe_template(resource) for resource in resources if resource.is_template]
        return of_app + [TEMPLATES[kind] for kind in await self.own_kinds()]

    async def choices(self, template: str, variable: str) -> tuple[str, ...]:
        """The values that the variable may have; none if it may have any. Raises `NotFound` for an unknown template."""
        for resource in (await self._app.resources()).values():
            if resource.is_template and resource.uri.text == template:
                return resource.function.choices.get(variable, ())
        if not any(TEMPLATES[kind].uri_template == template for kind in await self.own_kinds()):
            raise NotFound("There is no such resource template.")
        return ()

    async def own_kinds(self) -> list[OwnKind]:
        """The kinds of Khala's resources that the caller is offered."""
        tools = await self._catalog.tools()
        return [kind for kind in OWN_KINDS if READING_TOOLS[kind] in tools]

    async def page(self, cursor: str | None) -> ResourcePage:
        """List the resources: the application's by name, files by path, then memories and blobs, the newest first."""
        own = [] if self._caller.user_id is None else await self.own_kinds()
        kinds: Sequence[ResourceKind] = ["app", *own]
        first, after = _decode(cursor)
        found: list[types.Resource] = []
        for kind in kinds[kinds.index(first) :] if first in kinds else kinds if first is None else ():
            page = await self._page_of(kind, self._catalog.actor.owner_id, after, PAGE_SIZE - len(found))
            found += page.resources
            if page.next is not None:
                return ResourcePage(found, _encode(kind, page.next))
            after = ""
        return ResourcePage(found, None)

    async def file_paths(self, beginning: str, limit: int) -> list[str]:
        """The first paths of the account's files that begin so."""
        if self._caller.user_id is None or "\0" in beginning or len(beginning) > paths.MAX_PATH_CHARACTERS:
            return []
        async with self._context.db.driver() as driver:
            return await workspace_files.paths_with(driver, self._caller.user_id, beginning, limit)

    async def read(self, uri: str) -> types.TextResourceContents | types.BlobResourceContents:
        """Read a resource."""
        if not uri.startswith(SCHEME):
            return await self._app.read(uri)
        kind, _, key = uri.removeprefix(SCHEME).partition("/")
        kinds = await self.own_kinds()
        if key:
            if kind == "files" and kind in kinds:
                return await self._read_file(uri, unquote(key))
            if kind == "memories" and kind in kinds:
                return await self._read_memory(uri, _id(key))
            if kind == "blobs" and kind in kinds:
                return await self._read_blob(uri, _id(key))
        raise NotFound("There is no such resource.")

    async def _page_of(self, kind: ResourceKind, user_id: UUID, after: str, limit: int) -> ResourcePage:
        if kind == "app":
            return await self._page_of_app(after, limit)
        async with self._context.db.driver() as driver:
            match kind:
                case "files":
                    entries = await workspace_files.page(driver, user_id, after=after, limit=limit + 1)
                    keys = [entry.path for entry in entries]
                    resources = [_file(entry) for entry in entries[:limit]]
                case "memories":
                    before = _id(after) if after else None
                    rows = await memories.page(driver, user_id, ["user", "agent"], before=before, limit=limit + 1)
                    keys = [str(memory.id) for memory in rows]
                    resources = [_memory(memory) for memory in rows[:limit]]
                case "blobs":
                    before = _id(after) if after else None
                    listed = await blobs.of_listed_threads(driver, user_id, before=before, limit=limit + 1)
                    keys = [str(blob.id) for blob in listed]
                    resources = [_blob(blob) for blob in await self._readable(driver, listed[:limit])]
        has_more = len(keys) > limit
        return ResourcePage(resources, (keys[limit - 1] if limit else after) if has_more else None)

    async def _page_of_app(self, after: str, limit: int) -> ResourcePage:
        resources = [one for one in (await self._app.resources()).values() if not one.is_template and one.name > after]
        names = [resource.name for resource in resources]
        listed = [describe_resource(resource) for resource in resources[:limit]]
        return ResourcePage(listed, names[limit - 1] if len(names) > limit else None)

    async def _readable(self, driver: Driver, listed: Sequence[Blob]) -> list[Blob]:
        threads = {blob.thread_id for blob in listed}
        decided = await access.authorizations(driver, [(thread_id, self._caller) for thread_id in threads])
        allowed = {
            thread_id
            for thread_id, authorization in zip(threads, decided, strict=True)
            if authorization is not None and authorization.allows(Action.READ_THREAD)
        }
        return [blob for blob in listed if blob.thread_id in allowed]

    async def _read_file(self, uri: str, path: str) -> types.TextResourceContents | types.BlobResourceContents:
        if self._caller.user_id is None:
            raise NotFound("There is no such resource.")
        try:
            normalized = paths.normalize(path)
        except ToolError as error:
            raise InvalidInput(error.message, path="uri") from error
        async with self._context.db.driver() as driver:
            content = await workspace_files.read(driver, self._caller.user_id, normalized)
        sniffer = ContentSniffer()
        sniffer.feed(content)
        return resource_contents(uri, sniffer.media_type("text/plain") or "application/octet-stream", content)

    async def _read_memory(self, uri: str, memory_id: UUID) -> types.TextResourceContents:
        async with self._context.db.driver() as driver:
            memory, space = await memories.find(driver, memory_id)
            is_readable = await may_change(driver, self._caller, space, Action.READ_MEMORIES)
        if not is_readable or self._caller.user_id is None:
            raise NotFound("There is no such memory.")
        return types.TextResourceContents(
            uri=uri, mime_type="application/json", text=msgspec.json.encode(memory).decode()
        )

    async def _read_blob(self, uri: str, blob_id: UUID) -> types.TextResourceContents | types.BlobResourceContents:
        blob = await find_readable_blob(self._context, self._caller, blob_id)
        if blob.size > MAX_RESOURCE_BYTES:
            raise PayloadTooLarge(
                f"This blob has {blob.size:,} bytes, and a resource at most {MAX_RESOURCE_BYTES:,}. "
                f"Read it over HTTP, at /api/blobs/{blob.id}."
            )
        return resource_contents(uri, blob.media_type, await read_whole(self._context.blobs.service, blob))


def _file(entry: WorkspaceEntry) -> types.Resource:
    return types.Resource(uri=f"{SCHEME}files/{quote(entry.path, safe='/')}", name=entry.path, size=entry.size)


def _memory(memory: Memory) -> types.Resource:
    name = " ".join(memory.text.split())
    short = name if len(name) <= MAX_NAME_CHARACTERS else name[: MAX_NAME_CHARACTERS - 1] + "…"
    return types.Resource(
        uri=f"{SCHEME}memories/{memory.id}", name=short, description=memory.kind, mime_type="application/json"
    )


def _blob(blob: Blob) -> types.Resource:
    return types.Resource(
        uri=f"{SCHEME}blobs/{blob.id}", name=blob.name or str(blob.id), mime_type=blob.media_type, size=blob.size
    )


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise NotFound("There is no such resource.") from error


def _encode(kind: ResourceKind, last: str) -> str:
    return base64.urlsafe_b64encode(f"{kind} {last}".encode()).decode()


def _decode(cursor: str | None) -> tuple[ResourceKind | None, str]:
    """The kind and the last item of the page before. Raises `InvalidInput` for a text that is no cursor."""
    if not cursor:
        return None, ""
    try:
        kind, _, last = base64.b64decode(cursor, altchars=b"-_", validate=True).decode().partition(" ")
        if len(cursor) <= MAX_CURSOR_CHARACTERS and "\0" not in last and kind in KINDS:
            return msgspec.convert(kind, ResourceKind), last
    except ValueError as error:
        raise InvalidInput("This is not a cursor of this list.", path="cursor") from error
    raise InvalidInput("This is not a cursor of this list.", path="cursor")
