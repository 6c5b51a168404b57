"""The workspace over REST: the files that tools see in a thread, the download of one, and an edit of its text."""

from typing import Annotated
from urllib.parse import quote
from uuid import UUID

from litestar import Controller, Response, get, put
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import BodyKwarg, QueryParameter

from khala.api.accounts.authentication import BY_KEY
from khala.api.context import Context
from khala.api.http.path_parameters import ThreadId
from khala.api.http.problem_details import documented_errors
from khala.api.openapi.document import example
from khala.api.types import ApiStruct, Page
from khala.api.validation import check_text
from khala.domain.access import Action, Caller
from khala.domain.errors import Conflict, InvalidInput
from khala.store.postgres.database import Driver
from khala.store.sharing import access
from khala.store.tools import workspace_files
from khala.store.tools.workspace_files import WorkspaceEntry

DENIED = ("invalid_input", "unauthorized", "forbidden", "thread_not_found", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type")
MAX_EDIT_BODY_BYTES = (12 << 20) + 1024
"""Two texts of at most 1 MiB, each byte of which JSON may escape by six, and their names."""
MAX_LIMIT = 1000
MAX_PATH_CHARACTERS = 1000
POLICY = "sandbox; default-src 'none'"
"""The file may not run scripts or load anything."""
FILE = ResponseSpec(bytes, media_type="application/octet-stream", description="The content.", generate_examples=False)
PATH = QueryParameter(description="The file's path in the workspace.", min_length=1, max_length=MAX_PATH_CHARACTERS)
CURSOR = QueryParameter(description="`nextCursor` of the page before.", max_length=MAX_PATH_CHARACTERS)


class FileEdit(ApiStruct, frozen=True, kw_only=True):
    """The new text of a file. `before` is the text that the caller has read: an edit replaces nothing else."""

    content: str
    before: str


class WorkspaceController(Controller):
    """The files that the tools of the caller's messages see in a thread: the account's, or a guest thread's."""

    path = "/threads/{thread_id:uuid}/workspace"
    tags = ("Tools",)
    security = BY_KEY

    @get(
        "/",
        operation_id="listWorkspace",
        summary="List the workspace's files",
        response_description="A page of files.",
        responses=documented_errors(*DENIED),
    )
    async def page(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        cursor: Annotated[str, CURSOR] = "",
        limit: Annotated[int, QueryParameter(ge=1, le=MAX_LIMIT, description="Files of one page.")] = MAX_LIMIT,
    ) -> Page[WorkspaceEntry]:
        """List the files by their paths. Takes the role editor: who may not send has no tools here."""
        async with context.db.driver() as driver:
            owner_id = await _owner_of(driver, thread_id, caller)
            after = check_text(cursor, "cursor")
            found = await workspace_files.page(driver, owner_id, after=after, limit=limit + 1)
        return Page(items=found[:limit], next_cursor=found[limit - 1].path if len(found) > limit else None)

    @get(
        "/file",
        operation_id="readWorkspaceFile",
        summary="Download a file of the workspace",
        responses=documented_errors(*DENIED, "not_found") | {200: FILE},
    )
    async def read(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        path: Annotated[str, PATH],
    ) -> Response[bytes]:
        """Read one file, at most 1 MiB. A browser saves it, and shows nothing of it."""
        async with context.db.driver() as driver:
            owner_id = await _owner_of(driver, thread_id, caller)
            content = await workspace_files.read(driver, owner_id, check_text(path, "path"))
        name = quote(path.rpartition("/")[2], safe="")
        return Response(
            content,
            media_type="application/octet-stream",
            headers={
                "Content-Disposition": f"attachment; filename*=UTF-8''{name}",
                "Content-Security-Policy": POLICY,
                "Cache-Control": "no-store",
            },
        )

    @put(
        "/file",
        operation_id="editWorkspaceFile",
        summary="Edit a file of the workspace",
        response_description="The file as it is stored.",
        responses=documented_errors(*DENIED, "not_found", "conflict", *BODY),
        request_max_body_size=MAX_EDIT_BODY_BYTES,
    )
    async def edit(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        path: Annotated[str, PATH],
        data: Annotated[FileEdit, BodyKwarg(examples=example("A later deadline", before="Friday", content="Monday"))],
    ) -> WorkspaceEntry:
        """Replace the text of a file that exists, unless it has changed since the caller read it (409).

        A repeated request succeeds.
        """
        async with context.db.driver() as driver:
            owner_id = await _owner_of(driver, thread_id, caller)
        before, content = _utf8(data.before, "before"), _utf8(data.content, "content")

        def replace(stored: bytes) -> bytes:
            if stored not in (before, content):
                raise Conflict(f"{path} has changed since it was read. Read it again.")
            return content

        await workspace_files.change(context.db, owner_id, check_text(path, "path"), replace)
        return WorkspaceEntry(path=path, size=len(content))


def _utf8(text: str, name: str) -> bytes:
    """The text as it is stored. Raises `InvalidInput` for lone surrogates."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput("Lone surrogates are not allowed.", path=name) from error


async def _owner_of(driver: Driver, thread_id: UUID, caller: Caller) -> UUID:
    """The owner of the workspace that the caller's messages use in this thread. Raises the errors of `authorize`."""
    await access.authorize(driver, thread_id, caller, Action.SEND_MESSAGE)
    return caller.user_id or thread_id
