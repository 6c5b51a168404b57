"""Schedules over REST: create, preview, list, read, change, fire and delete them. They belong to accounts."""

from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Controller, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import BodyKwarg, PathParameter, QueryParameter

from khala.api.accounts.authentication import BY_ACCOUNT
from khala.api.context import Context
from khala.api.http.page_cursors import decode_cursor, encode_cursor
from khala.api.http.problem_details import documented_errors, documented_success
from khala.api.openapi.document import OptionalBody, example
from khala.api.schedules.types import FireRequest, NewSchedule, ScheduleEdit, SchedulePreview, StartedBySchedule
from khala.api.threads.run_options import check_options
from khala.api.types import Page
from khala.api.validation import check_message_text, check_new_id, check_text
from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.agents import AUTO
from khala.domain.chat import RunOptions, StoredRunOptions
from khala.domain.errors import InvalidInput
from khala.domain.schedules import Schedule, Timing, check_timing, preview
from khala.schedules.firing import fire, scheduled_options
from khala.store.accounts.accounts import require_account
from khala.store.schedules import schedules
from khala.store.schedules.schedules import ScheduleChanges, StoredSchedule
from khala.store.threads.thread_pages import LAST_POSITION

DENIED = ("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type")
DAILY = {"name": "Morning report", "text": "What is new?", "cron": "0 7 * * 1-5", "timeZone": "Europe/Berlin"}

ScheduleId = Annotated[UUID, PathParameter(description="The schedule's id.")]
Cursor = Annotated[str | None, QueryParameter(description="The `nextCursor` of the previous page.")]
Limit = Annotated[int, QueryParameter(ge=1, le=200, description="The maximum number of items.")]
ThreadId = Annotated[UUID | None, QueryParameter(name="threadId", description="Only those that send to this thread.")]


class ScheduleController(Controller):
    """Schedules of an account."""

    path = "/schedules"
    tags = ("Schedules",)
    security = BY_ACCOUNT

    @post(
        "/",
        operation_id="createSchedule",
        summary="Create a schedule",
        response_description="The schedule.",
        responses=documented_errors(*DENIED, "thread_not_found", "conflict", *BODY)
        | {200: documented_success(Schedule, "The schedule already existed. Nothing was changed.")},
    )
    async def create(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        data: Annotated[NewSchedule, BodyKwarg(examples=example("Every working day at seven", **DAILY))],
    ) -> Response[Schedule]:
        """Send a message, or start a plan, at a time or regularly, as the caller and with the caller's budgets."""
        user_id = require_account(caller)
        timing = Timing(at=data.at, cron=data.cron, time_zone=data.time_zone, missed=data.missed, ends_at=data.ends_at)
        check_timing(timing)
        _check_action(data)
        new = StoredSchedule(
            id=data.id or ids.new(),
            user_id=user_id,
            name=None if data.name is None else check_text(data.name, "name"),
            thread_id=data.thread_id,
            plan_id=data.plan_id,
            message=None if data.text is None else check_message_text(data.text),
            options=None if data.text is None else await check_scheduled_options(data.options, context, caller),
            timing=timing,
        )
        schedule, is_new = await schedules.create(context.db, new, caller)
        return Response(schedule, status_code=201 if is_new else 200)

    @get(
        "/",
        operation_id="listSchedules",
        summary="List schedules",
        response_description="Schedules, newest first.",
        responses=documented_errors(*DENIED),
    )
    async def page(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        cursor: Cursor = None,
        limit: Limit = 50,
        thread_id: ThreadId = None,
    ) -> Page[Schedule]:
        """List the account's schedules and delayed sends. Those that have ended are listed for a week."""
        before = LAST_POSITION if cursor is None else decode_cursor(cursor)
        page = await schedules.list_page(context.db, require_account(caller), before, limit + 1, thread_id)
        items = page[:limit]
        last = encode_cursor(items[-1].created_at, items[-1].id) if len(page) > limit else None
        return Page(items=items, next_cursor=last)

    @get(
        "/preview",
        operation_id="previewSchedule",
        summary="Preview the times of a cron expression",
        response_description="The next times, in UTC.",
        responses=documented_errors(*DENIED),
    )
    async def preview(
        self,
        caller: NamedDependency[Caller],
        cron: Annotated[str, QueryParameter(max_length=100, description="Five fields, as in `0 7 * * 1-5`.")],
        time_zone: Annotated[str, QueryParameter(name="timeZone", max_length=64, description="An IANA name.")] = "UTC",
        count: Annotated[int, QueryParameter(ge=1, le=50, description="The number of times.")] = 5,
    ) -> SchedulePreview:
        """Return the next times from now on."""
        require_account(caller)
        timing = Timing(cron=cron, time_zone=time_zone)
        check_timing(timing)
        return SchedulePreview(times=preview(timing, datetime.now(UTC), count))

    @get(
        "/{schedule_id:uuid}",
        operation_id="readSchedule",
        summary="Read a schedule",
        response_description="The schedule.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def read(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], schedule_id: ScheduleId
    ) -> Schedule:
        """Read the schedule, with its next time and what it has started last."""
        async with context.db.driver() as driver:
            return schedules.read_schedule(await schedules.read(driver, schedule_id, require_account(caller)))

    @patch(
        "/{schedule_id:uuid}",
        operation_id="changeSchedule",
        summary="Change, pause or resume a schedule",
        response_description="The changed schedule.",
        responses=documented_errors(*DENIED, "not_found", "conflict", *BODY),
    )
    async def change(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        schedule_id: ScheduleId,
        data: Annotated[ScheduleEdit, BodyKwarg(examples=example("Pause it", paused=True))],
    ) -> Schedule:
        """Change the schedule. `paused` pauses it, or lets it go on from its next time."""
        user_id = require_account(caller)
        if data.options is not msgspec.UNSET and data.agent is not msgspec.UNSET:
            raise InvalidInput("Send either `options` or `agent`.", path="agent")
        changes: dict[str, Any] = {"name": data.name, "paused": data.paused}
        if isinstance(data.name, str):
            check_text(data.name, "name")
        if isinstance(data.text, str):
            changes["message"] = check_message_text(data.text)
        if isinstance(data.options, RunOptions):
            changes["options"] = await check_scheduled_options(data.options, context, caller)
        async with context.db.driver() as driver:
            stored = schedules.read_stored(await schedules.read(driver, schedule_id, user_id))
        if data.agent is not msgspec.UNSET:
            options = _with_agent(stored.options, data.agent, context)
            changes["options"] = await check_scheduled_options(options, context, caller, agent_path="agent")
        timing = _changed_timing(stored.timing, data)
        if timing != stored.timing:
            check_timing(timing)
            if stored.plan_id is not None and timing.cron is not None:
                raise InvalidInput("A plan is started at one time: send `at`.", path="cron")
            changes["timing"] = timing
        return await schedules.change(context.db, schedule_id, user_id, ScheduleChanges(**changes))

    @post(
        "/{schedule_id:uuid}/run",
        operation_id="runSchedule",
        operation_class=OptionalBody,
        summary="Fire a schedule now",
        status_code=202,
        response_description="What the schedule has started.",
        responses=documented_errors(
            *DENIED, "not_found", "thread_not_found", "conflict", "run_active", *BODY, "budget_exhausted"
        ),
    )
    async def run_now(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        schedule_id: ScheduleId,
        data: Annotated[
            FireRequest | None, BodyKwarg(examples=example("A repeatable request", messageId=str(UUID(int=7))))
        ] = None,
    ) -> Response[StartedBySchedule]:
        """Send the message, or start the plan, beside the schedule's own times, which stay as they are."""
        async with context.db.driver() as driver:
            stored = schedules.read_stored(await schedules.read(driver, schedule_id, require_account(caller)))
        model = None if stored.options is None else stored.options.model
        if model is not None and not context.models.is_allowed(model):
            raise InvalidInput("The model of this schedule is not offered any more.")
        message_id = None if data is None else check_new_id(data.message_id, "messageId")
        fired = await fire(context.db, stored, message_id or ids.new(), context.limits.sends)
        assert fired.thread_id is not None
        return Response(StartedBySchedule(thread_id=fired.thread_id, run_id=fired.run_id), status_code=202)

    @delete(
        "/{schedule_id:uuid}",
        operation_id="deleteSchedule",
        summary="Delete a schedule",
        response_description="The schedule was deleted, and fires nothing any more.",
        responses=documented_errors(*DENIED, "not_found", "conflict"),
    )
    async def remove(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], schedule_id: ScheduleId
    ) -> None:
        """Delete the schedule, or cancel the delayed send. While it is being fired, this is 409."""
        await schedules.remove(context.db, schedule_id, require_account(caller))


async def check_scheduled_options(
    options: RunOptions, context: Context, caller: Caller, *, agent_path: str = "options.agent"
) -> StoredRunOptions:
    """The options to store of a scheduled run. Raises `InvalidInput`, also for the agent `auto`."""
    if options.agent == AUTO:
        raise InvalidInput(
            "A scheduled message names its agent: `auto` chooses one when a message is sent.", path=agent_path
        )
    checked = await check_options(options, context, caller, agent_path=agent_path)
    known = {name: getattr(checked, name) for name in type(checked).__struct_fields__}
    return scheduled_options(StoredRunOptions(**known))


def _with_agent(stored: StoredRunOptions | None, agent: str | None, context: Context) -> RunOptions:
    """The options with another agent. A model that is not offered any more is left out."""
    known = {name: getattr(stored or RunOptions(), name) for name in RunOptions.__struct_fields__}
    model = known["model"]
    is_offered = model is None or context.models.is_allowed(model)
    return RunOptions(**known | {"agent": agent, "model": model if is_offered else None})


def _check_action(data: NewSchedule) -> None:
    if (data.text is None) == (data.plan_id is None):
        raise InvalidInput("Send either `text` or `planId`.", path="text")
    if data.plan_id is not None and data.thread_id is not None:
        raise InvalidInput("The plan has its own thread: leave `threadId` out.", path="threadId")
    if data.plan_id is not None and data.cron is not None:
        raise InvalidInput("A plan is started at one time: send `at`.", path="cron")


def _changed_timing(timing: Timing, data: ScheduleEdit) -> Timing:
    given = {name: getattr(data, name) for name in ("at", "cron", "time_zone", "missed", "ends_at")}
    changes = {name: value for name, value in given.items() if value is not msgspec.UNSET}
    if "cron" in changes and "at" not in changes:
        changes["at"] = None
    elif "at" in changes and "cron" not in changes:
        changes["cron"] = None
    return msgspec.structs.replace(timing, **changes)
