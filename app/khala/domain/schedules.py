"""Schedules: when an account's messages are sent and plans are started. Pure: the time is an argument.

A schedule has occurrences: one time, or those of a cron expression in a time zone. Cron follows Debian's rules when
clocks change: an occurrence at a fixed time that a gap skips comes right after the gap, and one within a repeated hour
comes once. One on a date that the zone leaves out, as Samoa did at the date line, does not come. Occurrences every hour
or more often follow elapsed time.
"""

import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec
from cronsim import CronSim, CronSimError

from khala.domain import ids
from khala.domain.backoff import Backoff
from khala.domain.chat import WireStruct
from khala.domain.errors import InvalidInput
from khala.domain.stored_times import check_storable

MissedPolicy: TypeAlias = Literal["skip", "once", "all"]
ScheduleStatus: TypeAlias = Literal["active", "paused", "ended"]

MAX_CRON_CHARACTERS = 100
MAX_ZONE_CHARACTERS = 64
MISSED_AFTER = timedelta(minutes=2)
"""An occurrence that has not fired so long after its time is missed."""
MAX_CAUGHT_UP = 10
"""Missed occurrences that the policy `all` fires: the newest."""
MAX_FAILURES = 5
"""Failures in a row after which a schedule pauses by itself."""
MAX_DELAY = timedelta(days=3660)
SECOND = timedelta(seconds=1)
SKIPPED_DATE = timedelta(days=1)
"""The shortest gap of a zone's clocks that leaves out a whole date."""
BACKOFF = Backoff(first_seconds=60, max_seconds=3600)
"""Delays between the attempts to fire one occurrence."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """The times of a schedule: a cron expression in a time zone, or one time if `cron` is None."""

    at: datetime | None = None
    cron: str | None = None
    time_zone: str = "UTC"
    ends_at: datetime | None = None
    missed: MissedPolicy = "once"

    def after(self, moment: datetime) -> datetime | None:
        """The first occurrence after this moment, in UTC; None if there is none until `ends_at`."""
        found = self.at if self.cron is None else next(_occurrences(self.cron, self.time_zone, moment), None)
        if found is None or found <= moment or (self.ends_at is not None and found > self.ends_at):
            return None
        return found


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """A decision about a due occurrence: fire `fire`, unless it is None, and then wait for `following`."""

    fire: datetime | None
    following: datetime | None


class Schedule(WireStruct, frozen=True, kw_only=True):
    """A message that is sent, or a plan that is started, at set times as its owner.

    Without `thread_id`, each occurrence has a thread of its own. `next_at` is absent unless the schedule is active.
    `agent` and `model` are those of its options, if they name one.
    `reason` says why it has paused or ended by itself, and `error` why the last attempt failed.
    """

    id: UUID
    name: str | None = None
    thread_id: UUID | None = None
    plan_id: UUID | None = None
    text: str | None = None
    agent: str | None = None
    model: str | None = None
    at: datetime | None = None
    cron: str | None = None
    time_zone: str
    missed: MissedPolicy
    ends_at: datetime | None = None
    status: ScheduleStatus
    reason: str | None = None
    next_at: datetime | None = None
    last_at: datetime | None = None
    last_thread_id: UUID | None = None
    last_run_id: UUID | None = None
    failures: int = 0
    error: str | None = None
    created_at: datetime
    updated_at: datetime


def check_timing(timing: Timing) -> None:
    """Raise `InvalidInput` for an expression or a time zone that there is not, and for two or no ways to give times."""
    if (timing.at is None) == (timing.cron is None):
        raise InvalidInput("Send either `at` or `cron`.", path="at")
    check_storable(timing.at, "at")
    check_storable(timing.ends_at, "endsAt")
    try:
        zone = zoneinfo.ZoneInfo(timing.time_zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidInput("This is not a time zone of the IANA database.", path="timeZone") from error
    if timing.cron is None:
        return
    if len(timing.cron.split()) != len("mhdMw"):
        raise InvalidInput("A cron expression has five fields: minute, hour, day, month and weekday.", path="cron")
    try:
        CronSim(timing.cron, datetime(2000, 1, 1, tzinfo=zone))
    except CronSimError as error:
        raise InvalidInput(f"This is not a cron expression: {error}.", path="cron") from error


def preview(timing: Timing, moment: datetime, count: int) -> list[datetime]:
    """The next occurrences after this moment, at most `count`."""
    found: list[datetime] = []
    following = timing.after(moment)
    while following is not None and len(found) < count:
        found.append(following)
        following = timing.after(following)
    return found


def decide_due(timing: Timing, occurrence: datetime, now: datetime) -> Due:
    """Decide about this occurrence, which is due. Repeated with a later `now`, it never fires another one twice.

    If it is missed, the policy decides: `skip` fires none of those that were missed, `once` one, and `all` the newest
    ten, one after the other.
    """
    if now - occurrence <= MISSED_AFTER:
        return Due(fire=occurrence, following=timing.after(occurrence))
    match timing.missed:
        case "skip":
            return Due(fire=None, following=timing.after(now))
        case "once":
            return Due(fire=occurrence, following=timing.after(now))
        case "all":
            oldest = max(occurrence, _oldest_caught_up(timing, now) or occurrence)
            return Due(fire=oldest, following=timing.after(oldest))


def message_id(schedule_id: UUID, occurrence: datetime) -> UUID:
    """The id of the message of an occurrence: the idempotency key of its run."""
    return ids.derived(schedule_id, f"message {occurrence.astimezone(UTC).isoformat()}")


def new_thread_id(message: UUID) -> UUID:
    """The id of the thread of an occurrence that has one of its own. No client can take it."""
    return ids.derived(message, "thread", version=ids.RESERVED_VERSION)


def _oldest_caught_up(timing: Timing, now: datetime) -> datetime | None:
    """The oldest of the newest ten occurrences until now."""
    if timing.cron is None:
        return timing.at
    backwards = _occurrences(timing.cron, timing.time_zone, now, reverse=True)
    return min(islice(backwards, MAX_CAUGHT_UP), default=None)


def _occurrences(cron: str, time_zone: str, moment: datetime, *, reverse: bool = False) -> Iterator[datetime]:
    zone = zoneinfo.ZoneInfo(time_zone)
    for found in CronSim(cron, moment.astimezone(zone), reverse=reverse):
        occurrence = found.astimezone(UTC)
        if not _is_of_skipped_date(cron, occurrence, zone):
            yield occurrence


def _is_of_skipped_date(cron: str, occurrence: datetime, zone: zoneinfo.ZoneInfo) -> bool:
    """Whether CronSim moved this occurrence to the end of a gap from a date that the zone leaves out."""
    local = occurrence.astimezone(zone).replace(tzinfo=None)
    before = (occurrence - SECOND).astimezone(zone).replace(tzinfo=None)
    return local - before > SKIPPED_DATE and next(CronSim(cron, local - SECOND), None) != local
