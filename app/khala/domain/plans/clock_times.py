"""Times of the day in messages for people, such as `resets 3pm (Europe/Berlin)` and `try again at 15:30 UTC`."""

import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

PASSED_WINDOW = timedelta(minutes=10)
"""A time that has passed since no longer than this is not that of the next day."""
_CLOCK = re.compile(
    r"\b(?:resets?|again|retry|retrying|available|until)\s+(?:at\s+)?(?P<hour>[01]?\d|2[0-3])(?::(?P<minute>[0-5]\d))?"
    r"(?:\s?(?P<half>[ap])\.?m\b\.?)?(?![\w:])(?:\s*\(?(?P<zone>UTC|GMT|[A-Za-z]+(?:/[A-Za-z_]+){1,2})\b)?",
    re.IGNORECASE,
)
_DATE_TIME = re.compile(
    r"\b(?:resets?|again|retry|retrying|available|until)\s+(?:at\s+)?"
    r"(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:\d\d)?)(?![\w:])",
    re.IGNORECASE,
)


def seconds_until(line: str, now: datetime) -> float | None:
    """The seconds until the time that this line tells; None if it tells none, or one that has passed.

    A time without a zone is one of `now`'s zone.
    """
    if match := _DATE_TIME.search(line):
        return _seconds_until_date(match["time"], now)
    match = _CLOCK.search(line)
    if match is None or (match["minute"] is None and match["half"] is None):
        return None
    hour = int(match["hour"])
    if match["half"] is not None:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if match["half"].lower() == "p" else 0)
    here = _in_zone(now, match["zone"])
    if here is None:
        return None
    then = here.replace(hour=hour, minute=int(match["minute"] or 0), second=0, microsecond=0)
    if then <= here - PASSED_WINDOW:
        then += timedelta(days=1)
    seconds = then.timestamp() - now.timestamp()
    return seconds if seconds > 0 else None


def _in_zone(now: datetime, name: str | None) -> datetime | None:
    """The time in the zone of this name, or as it is without a name. None if there is no such zone."""
    if name is None:
        return now
    try:
        return now.astimezone(ZoneInfo("UTC" if name.upper() in ("UTC", "GMT") else name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def _seconds_until_date(text: str, now: datetime) -> float | None:
    try:
        then = datetime.fromisoformat(text.upper())
    except ValueError:
        return None
    then = then if then.tzinfo is not None else then.replace(tzinfo=now.tzinfo)
    seconds = then.timestamp() - now.timestamp()
    return seconds if seconds > 0 else None
