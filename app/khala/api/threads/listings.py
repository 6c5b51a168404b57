"""Pinned, archived and filed threads over REST, and the undo of a deletion."""

from typing import Annotated

import msgspec
from litestar import Controller, patch, post
from litestar.di import NamedDependency
from litestar.params import BodyKwarg

from khala.api.accounts.authentication import BY_KEY
from khala.api.context import Context
from khala.api.http.path_parameters import ThreadId
from khala.api.http.problem_details import documented_errors
from khala.api.openapi.document import example
from khala.api.threads.types import ListingChanges
from khala.domain.access import Caller
from khala.domain.chat import Thread, ThreadListing
from khala.store.threads import thread_deletions, thread_listings
from khala.store.threads.thread_listings import ThreadListingChanges

DENIED = ("invalid_input", "unauthorized", "forbidden", "thread_not_found", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type")


class ListingController(Controller):
    """Pinned and archived threads, threads in folders, and deletions that are undone."""

    path = "/"
    tags = ("Threads",)

    @patch(
        "/threads/{thread_id:uuid}/listing",
        operation_id="changeListing",
        summary="Pin, archive or file a thread",
        security=BY_KEY,
        response_description="Where the caller keeps the thread.",
        responses=documented_errors(*DENIED, *BODY),
    )
    async def change(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        data: Annotated[ListingChanges, BodyKwarg(examples=example("Into a folder", folder="Trips"))],
    ) -> ThreadListing:
        """Change where the caller keeps the thread on their own list. Nobody else sees it."""
        changes = ThreadListingChanges(**msgspec.structs.asdict(data))
        return await thread_listings.change(context.db, thread_id, caller, changes)

    @post(
        "/threads/{thread_id:uuid}/restore",
        operation_id="restoreThread",
        summary="Undo the deletion of a thread",
        security=BY_KEY,
        status_code=200,
        response_description="The thread.",
        responses=documented_errors(*DENIED),
    )
    async def restore(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId
    ) -> Thread:
        """Restore a thread that was deleted some seconds ago. A thread that was not deleted does not change."""
        return await thread_deletions.restore(context.db, thread_id, caller)
