"""Feedback on answers over REST."""

from typing import Annotated
from uuid import UUID

from litestar import Controller, delete, get, put
from litestar.di import NamedDependency
from litestar.params import BodyKwarg, PathParameter
from msgspec import Meta

from khala.api.accounts.authentication import BY_KEY
from khala.api.context import Context
from khala.api.http.path_parameters import ThreadId
from khala.api.http.problem_details import documented_errors
from khala.api.openapi.document import example
from khala.api.types import ApiStruct, Items
from khala.api.validation import check_text
from khala.domain.access import Caller
from khala.domain.feedback import MAX_REASON_CHARACTERS, Feedback, FeedbackRating
from khala.store.threads import feedback

DENIED = ("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type")
MessageId = Annotated[UUID, PathParameter(description="The message's id.")]


class FeedbackBody(ApiStruct, frozen=True, kw_only=True):
    """Feedback on an answer."""

    rating: FeedbackRating
    reason: Annotated[str, Meta(max_length=MAX_REASON_CHARACTERS)] | None = None


class FeedbackController(Controller):
    """Feedback of people on answers."""

    path = "/"
    tags = ("Threads",)
    security = BY_KEY

    @put(
        "/messages/{message_id:uuid}/feedback",
        operation_id="giveFeedback",
        summary="Give feedback on an answer",
        response_description="The feedback.",
        responses=documented_errors(*DENIED, "not_found", *BODY),
    )
    async def give(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        message_id: MessageId,
        data: Annotated[FeedbackBody, BodyKwarg(examples=example("It helped", rating="up"))],
    ) -> Feedback:
        """Store the caller's feedback, in place of an earlier one. Nobody else in the thread sees it."""
        reason = None if data.reason is None else check_text(data.reason, "reason").strip() or None
        return await feedback.put(context.db, message_id, caller, rating=data.rating, reason=reason)

    @delete(
        "/messages/{message_id:uuid}/feedback",
        operation_id="withdrawFeedback",
        summary="Withdraw feedback",
        response_description="There is no feedback of the caller.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def withdraw(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], message_id: MessageId
    ) -> None:
        """Delete the caller's feedback on the answer."""
        await feedback.remove(context.db, message_id, caller)

    @get(
        "/threads/{thread_id:uuid}/feedback",
        operation_id="listFeedback",
        summary="List one's own feedback",
        response_description="The caller's feedback, the newest first.",
        responses=documented_errors(*DENIED, "thread_not_found"),
    )
    async def of_thread(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId
    ) -> Items[Feedback]:
        """List the caller's own feedback on answers of this thread, at most 1,000."""
        async with context.db.snapshot() as driver:
            return Items(items=await feedback.of_person(driver, thread_id, caller))
