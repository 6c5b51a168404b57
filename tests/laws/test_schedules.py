"""Times of schedules: laws that hold in every time zone, also when clocks change."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from khala.domain.errors import InvalidInput
from khala.domain.schedules import (
    MAX_CAUGHT_UP,
    MISSED_AFTER,
    MissedPolicy,
    Timing,
    check_timing,
    decide_due,
    message_id,
    new_thread_id,
    preview,
)

ZONES = st.sampled_from(
    ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "America/Sao_Paulo",
     "Africa/Cairo", "Pacific/Apia", "Asia/Gaza"]
)  # fmt: skip
MOMENTS = st.datetimes(datetime(2001, 1, 1), datetime(2037, 1, 1), timezones=st.just(UTC))
MINUTES, HOURS = st.integers(0, 59), st.integers(0, 23)
LATE = MISSED_AFTER + timedelta(seconds=1)


@given(ZONES, MOMENTS, MINUTES, HOURS)
@example("Pacific/Apia", datetime(2011, 12, 1, tzinfo=UTC), 0, 0)
@example("Pacific/Apia", datetime(2011, 12, 1, tzinfo=UTC), 0, 1)
@settings(max_examples=150, deadline=None)
def test_a_daily_schedule_comes_once_on_each_date_also_when_clocks_change(
    zone: str, moment: datetime, minute: int, hour: int
) -> None:
    times = preview(Timing(cron=f"{minute} {hour} * * *", time_zone=zone), moment, 400)
    local = [time.astimezone(ZoneInfo(zone)) for time in times]
    assert len(times) == 400
    assert all(before < after for before, after in pairwise(times))
    for before, after in pairwise(local):
        assert after.date() == _next_date(zone, before.date())
    for one in local:
        if (one.hour, one.minute) != (hour, minute):
            assert not _exists(zone, one.replace(hour=hour, minute=minute, fold=0)), "it comes at another time"
    newest = decide_due(Timing(cron=f"{minute} {hour} * * *", time_zone=zone, missed="all"), times[0], times[-1] + LATE)
    assert newest.fire == times[-MAX_CAUGHT_UP], "backwards from the newest, the same times are found"


def _next_date(zone: str, day: date) -> date:
    """The next date that the zone has: of one that it leaves out, neither the first nor the last minute exists."""
    following = day + timedelta(days=1)
    first = datetime(following.year, following.month, following.day)
    edges = (first, first + timedelta(hours=23, minutes=59))
    return following if any(_exists(zone, edge) for edge in edges) else _next_date(zone, following)


def _exists(zone: str, local: datetime) -> bool:
    """Whether clocks show this time: it is in no gap."""
    naive = local.replace(tzinfo=None)
    back = naive.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC).astimezone(ZoneInfo(zone))
    return back.replace(tzinfo=None) == naive


@given(ZONES, MOMENTS, st.sampled_from([1, 5, 10, 15, 20, 30]))
@settings(max_examples=60, deadline=None)
def test_a_schedule_every_few_minutes_follows_elapsed_time(zone: str, moment: datetime, step: int) -> None:
    times = preview(Timing(cron=f"*/{step} * * * *", time_zone=zone), moment, 60 // step * 30)
    assert {after - before for before, after in pairwise(times)} == {timedelta(minutes=step)}


@given(ZONES, MOMENTS, MINUTES, st.sampled_from(["once", "all", "skip"]), st.integers(0, 5_000))
@settings(max_examples=150, deadline=None)
def test_each_occurrence_fires_at_most_once_and_catching_up_ends(
    zone: str, moment: datetime, minute: int, missed: MissedPolicy, late_minutes: int
) -> None:
    timing = Timing(cron=f"{minute} * * * *", time_zone=zone, missed=missed)
    first = timing.after(moment)
    assert first is not None
    now = first + timedelta(minutes=late_minutes)
    fired: list[datetime] = []
    occurrence: datetime | None = first
    while occurrence is not None and occurrence <= now:
        due = decide_due(timing, occurrence, now)
        # A process that fires the same occurrence later, after another one has died, fires the same or a newer one.
        again = decide_due(timing, occurrence, now + timedelta(minutes=7))
        if due.fire is not None:
            assert again.fire is None or again.fire >= due.fire
            fired.append(due.fire)
        assert due.following is None or due.following > occurrence
        occurrence = due.following
    assert fired == sorted(set(fired))
    is_missed = now - first > MISSED_AFTER
    limit = {"skip": 1, "once": 2, "all": MAX_CAUGHT_UP + 1}[missed]
    assert len(fired) <= limit
    assert is_missed or fired == [first]
    if missed == "skip":
        assert all(now - time <= MISSED_AFTER for time in fired)


@given(st.uuids(), MOMENTS, MOMENTS)
def test_the_ids_of_occurrences_are_fixed_and_differ(schedule_id: object, one: datetime, other: datetime) -> None:
    first = message_id(schedule_id, one)  # type: ignore[arg-type]
    assert first == message_id(schedule_id, one.astimezone(ZoneInfo("Asia/Kathmandu")))  # type: ignore[arg-type]
    assert (first == message_id(schedule_id, other)) == (one == other)  # type: ignore[arg-type]
    assert new_thread_id(first).version == 8


@pytest.mark.parametrize(
    "timing",
    [
        Timing(), Timing(cron="* * * * *", at=datetime(2030, 1, 1, tzinfo=UTC)), Timing(cron="* * * *"),
        Timing(cron="* * * * * *"), Timing(cron="61 * * * *"), Timing(cron="0 0 31 2 *"), Timing(cron="@daily x y z w"),
        Timing(cron="* * * * *", time_zone="Mars/Olympus"), Timing(cron="* * * * *", time_zone="../../etc/passwd"),
        Timing(cron="* * * * *", time_zone="Europe"), Timing(cron="* * * * *", time_zone="a\0b"),
    ],
)  # fmt: skip
def test_an_expression_or_zone_that_there_is_not_is_refused(timing: Timing) -> None:
    with pytest.raises(InvalidInput):
        check_timing(timing)


def test_a_schedule_ends_after_its_last_time() -> None:
    start = datetime(2030, 1, 1, tzinfo=UTC)
    timing = Timing(cron="0 * * * *", ends_at=start + timedelta(hours=2))
    assert preview(timing, start, 10) == [start + timedelta(hours=1), start + timedelta(hours=2)]
    once = Timing(at=start)
    assert decide_due(once, start, start + timedelta(days=1)).following is None
    assert decide_due(Timing(at=start, missed="skip"), start, start + timedelta(days=1)).fire is None
