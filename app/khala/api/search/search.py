"""Search over REST: messages, files and memories that the caller may read."""

from typing import Annotated
from uuid import UUID

from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from khala.api.accounts.authentication import BY_KEY
from khala.api.context import Context
from khala.api.http.problem_details import documented_errors
from khala.api.openapi.constraints import NOT_BLANK
from khala.api.types import Page
from khala.domain.access import Caller
from khala.domain.search_results import Cursor, SearchHit, SearchKind

MAX_QUERY_CHARACTERS = 1_000
MAX_CURSOR_CHARACTERS = 4_096

Query = Annotated[
    str,
    QueryParameter(
        min_length=1,
        max_length=MAX_QUERY_CHARACTERS,
        pattern=NOT_BLANK,
        description="The words to find, in any order.",
    ),
]
InThread = Annotated[UUID | None, QueryParameter(name="threadId", description="Search only this thread.")]
OfKind = Annotated[SearchKind | None, QueryParameter(name="kind", description="By default all kinds.")]
ByMeaning = Annotated[
    bool,
    QueryParameter(
        name="meaning",
        description="0 to search by words only, which never waits for the embedding model. The same for all pages.",
    ),
]
After = Annotated[
    str | None, QueryParameter(max_length=MAX_CURSOR_CHARACTERS, description="The `nextCursor` of the previous page.")
]
Limit = Annotated[int, QueryParameter(ge=1, le=100, description="The maximum number of items.")]


class SearchController(Controller):
    """Search."""

    path = "/search"
    tags = ("Search",)
    security = BY_KEY

    @get(
        "/",
        operation_id="search",
        summary="Search messages, files and memories",
        response_description="Exact matches first, then similar texts; within both, the best first.",
        responses=documented_errors(
            "invalid_input", "unauthorized", "forbidden", "thread_not_found", "not_found", "rate_limited", "unavailable"
        ),
    )
    async def search(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        q: Query,
        thread_id: InThread = None,
        of_kind: OfKind = None,
        by_meaning: ByMeaning = True,  # noqa: FBT002
        cursor: After = None,
        limit: Limit = 20,
    ) -> Page[SearchHit]:
        """Find what the caller may read: in the threads of their list, or in one thread."""
        items, following = await context.search.search(
            caller,
            q,
            thread_id=thread_id,
            kind=of_kind,
            cursor=None if cursor is None else Cursor.read(cursor),
            limit=limit,
            meaning=by_meaning,
        )
        return Page(items=items, next_cursor=None if following is None else str(following))
