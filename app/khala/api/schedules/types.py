"""Request and response bodies of schedules."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from khala.api.types import ApiStruct, Name, Timestamp
from khala.api.validation import MAX_MESSAGE_CHARACTERS
from khala.domain.chat import MAX_AGENT_NAME_CHARACTERS, RunOptions
from khala.domain.schedules import MAX_CRON_CHARACTERS, MAX_ZONE_CHARACTERS, MissedPolicy

Cron = Annotated[str, Meta(min_length=9, max_length=MAX_CRON_CHARACTERS)]
Zone = Annotated[str, Meta(min_length=1, max_length=MAX_ZONE_CHARACTERS)]
AgentName = Annotated[str, Meta(max_length=MAX_AGENT_NAME_CHARACTERS)]
MessageText = Annotated[str, Meta(min_length=1, max_length=MAX_MESSAGE_CHARACTERS)]


class NewSchedule(ApiStruct, frozen=True, kw_only=True):
    """A message to send, or a plan to start, at a time (`at`) or by a cron expression of five fields (`cron`).

    Without `threadId`, each message has a thread of its own, with `name` as its title. A plan is started at one time.
    If the client generates `id`, it can safely repeat the request.
    """

    id: UUID | None = None
    name: Name | None = None
    thread_id: UUID | None = None
    plan_id: UUID | None = None
    text: MessageText | None = None
    options: RunOptions = msgspec.field(default_factory=RunOptions)
    at: Timestamp | None = None
    cron: Cron | None = None
    time_zone: Zone = "UTC"
    missed: MissedPolicy = "once"
    ends_at: Timestamp | None = None


class ScheduleEdit(ApiStruct, frozen=True, kw_only=True):
    """Changes of a schedule. Fields that are absent stay as they are. `cron` replaces `at`, and the other way round.

    `options` replaces all options of before. `agent` replaces the agent alone, and null removes it.
    """

    name: Name | msgspec.UnsetType | None = msgspec.UNSET
    text: MessageText | msgspec.UnsetType = msgspec.UNSET
    options: RunOptions | msgspec.UnsetType = msgspec.UNSET
    agent: AgentName | msgspec.UnsetType | None = msgspec.UNSET
    at: Timestamp | msgspec.UnsetType = msgspec.UNSET
    cron: Cron | msgspec.UnsetType = msgspec.UNSET
    time_zone: Zone | msgspec.UnsetType = msgspec.UNSET
    missed: MissedPolicy | msgspec.UnsetType = msgspec.UNSET
    ends_at: Timestamp | msgspec.UnsetType | None = msgspec.UNSET
    paused: bool | msgspec.UnsetType = msgspec.UNSET


class FireRequest(ApiStruct, frozen=True, kw_only=True):
    """If the client generates `messageId`, it can safely repeat the request."""

    message_id: UUID | None = None


class StartedBySchedule(ApiStruct, frozen=True, kw_only=True):
    """The run in a thread, or the plan of a thread, that a schedule has started."""

    thread_id: UUID
    run_id: UUID | None = None


class SchedulePreview(ApiStruct, frozen=True, kw_only=True):
    """The next times, in UTC."""

    times: list[datetime]
