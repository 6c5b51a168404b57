"""Files of an account's folders over REST. The body of an upload is the file, as for files of messages."""

from typing import Annotated, Any
from uuid import UUID

from litestar import Controller, Request, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from khala.api.accounts.authentication import BY_ACCOUNT
from khala.api.blobs import blob_responses
from khala.api.blobs.uploads import BODY, FileBody, check_file_body, receive_file
from khala.api.context import Context
from khala.api.http.path_parameters import FileId
from khala.api.http.problem_details import documented_errors
from khala.api.threads.folders import DENIED, FolderName
from khala.api.types import Items
from khala.api.validation import check_text
from khala.blobs.blob_service import plain_name
from khala.domain.access import Caller
from khala.domain.chat import FolderFile
from khala.domain.errors import InvalidInput, NotFound, Unauthorized
from khala.store.threads import folder_files

FileName = Annotated[str, QueryParameter(name="file", max_length=1000, description="The name of the file.")]


def account_of(caller: Caller) -> UUID:
    """Return the account of the caller. Raises `Unauthorized`: folders of guests have no files."""
    if caller.user_id is None:
        raise Unauthorized("Sign in to keep files in folders.")
    return caller.user_id


class FolderFileController(Controller):
    """Files of folders, which the threads in the folder can use."""

    path = "/me/folder/files"
    tags = ("Threads",)
    security = BY_ACCOUNT

    @get(
        "/",
        operation_id="listFolderFiles",
        summary="List the files of a folder",
        response_description="The files, by name. A folder that does not exist has none.",
        responses=documented_errors(*DENIED),
    )
    async def page(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], name: FolderName
    ) -> Items[FolderFile]:
        """List the files of a folder of the account."""
        user_id = account_of(caller)
        async with context.db.driver() as driver:
            files = await folder_files.read_all(driver, user_id, check_text(name, "name"))
        return Items(items=[file.entry for file in files])

    @post(
        "/",
        operation_id="uploadFolderFile",
        operation_class=FileBody,
        summary="Add a file to a folder",
        opt={"scope": "account"},
        response_description="The file.",
        responses=documented_errors(*DENIED, *BODY, "conflict"),
        # No limit here: the spool enforces the operator's limit.
        request_max_body_size=None,
        raw_body=True,
    )
    async def add(
        self,
        request: Request[Any, Any, Any],
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        name: FolderName,
        file_name: FileName,
    ) -> FolderFile:
        """Add a file to a folder of the account, which is made if there is none of this name.

        The content of the file determines its media type. The same content under the same name is added once.
        """
        user_id, folder = account_of(caller), check_text(name, "name")
        stored_name = plain_name(check_text(file_name, "file"))
        if stored_name is None:
            raise InvalidInput("Give the file a name.", path="file")
        service, max_bytes = context.blobs.service, context.blobs.max_upload_bytes
        check_file_body(request, max_bytes)
        async with context.db.driver() as driver:
            await folder_files.check_quota(driver, user_id, folder, 0, service.quota, files=0)
        async with service.spool(max_bytes) as spool:
            media_type = await receive_file(request, spool)
            stored = await service.put_in_folder(
                spool, user_id=user_id, folder=folder, media_type=media_type, name=stored_name
            )
        return stored.entry

    @get(
        "/{file_id:uuid}",
        operation_id="readFolderFile",
        summary="Read a file of a folder",
        responses=documented_errors(*DENIED, "not_found", "blob_not_found", "range_not_satisfiable")
        | blob_responses.CONTENT_RESPONSES,
    )
    async def read(
        self,
        request: Request[Any, Any, Any],
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        file_id: FileId,
    ) -> Response[Any]:
        """Read the content of a file of the account, or a `Range` of it."""
        async with context.db.driver() as driver:
            file = await folder_files.find(driver, account_of(caller), file_id)
        if file is None:
            raise NotFound("There is no such file.")
        not_modified = blob_responses.not_modified(request, file)
        if not_modified is not None:
            return not_modified
        try:
            byte_range = blob_responses.requested_range(request, file)
        except blob_responses.RangeNotSatisfiableError:
            return blob_responses.range_error(file)
        return await blob_responses.stream_blob(context.blobs.service, file, byte_range)

    @delete(
        "/{file_id:uuid}",
        operation_id="deleteFolderFile",
        summary="Remove a file from its folder",
        opt={"scope": "account"},
        response_description="The file is removed.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def remove(self, context: NamedDependency[Context], caller: NamedDependency[Caller], file_id: FileId) -> None:
        """Remove a file of the account from its folder, if there is one."""
        await folder_files.remove(context.db, account_of(caller), file_id)
