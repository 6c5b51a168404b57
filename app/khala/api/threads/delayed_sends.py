"""Delayed sends: a message that waits as a schedule, and is sent at its time as its author."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from litestar import Response

from khala.api.context import Context
from khala.api.schedules.schedules import check_scheduled_options
from khala.api.threads.types import NewMessage
from khala.api.validation import check_message_text, check_new_id
from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.chat import SendResult
from khala.domain.errors import InvalidInput
from khala.domain.schedules import MAX_DELAY, Schedule, Timing
from khala.domain.stored_times import check_storable
from khala.store.accounts.accounts import require_account
from khala.store.schedules import schedules
from khala.store.schedules.schedules import StoredSchedule

NO_ATTACHMENTS = "A delayed message has no attachments: uploads that belong to no message are deleted after a day."
NO_PARENT = "A delayed message follows the message that is the last one when it is sent: leave `parentId` out."


async def delay(context: Context, caller: Caller, thread_id: UUID, data: NewMessage) -> Response[SendResult | Schedule]:
    """Store the message as a schedule, whose id is the message's. The same `messageId` again changes nothing.

    Raises `Unauthorized` for a guest, and the errors of creating a schedule.
    """
    user_id = require_account(caller)
    if data.send_at is not None and data.after is not None:
        raise InvalidInput("Send either `sendAt` or `after`.", path="after")
    check_storable(data.send_at, "sendAt")
    if data.send_at is not None and data.send_at > datetime.now(UTC) + MAX_DELAY:
        raise InvalidInput("This must be within the next ten years.", path="sendAt")
    if data.attachments:
        raise InvalidInput(NO_ATTACHMENTS, path="attachments")
    if isinstance(data.parent_id, UUID | None):
        raise InvalidInput(NO_PARENT, path="parentId")
    message_id = check_new_id(data.message_id, "messageId") or ids.new()
    new = StoredSchedule(
        id=message_id,
        user_id=user_id,
        thread_id=thread_id,
        message=check_message_text(data.text),
        message_id=message_id,
        options=await check_scheduled_options(data.options, context, caller),
        timing=Timing(at=data.send_at or datetime.now(UTC) + timedelta(seconds=data.after or 0)),
    )
    schedule, is_new = await schedules.create(context.db, new, caller)
    return Response(schedule, status_code=202 if is_new else 200)
