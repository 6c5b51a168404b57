"""Times that can be stored. Postgres' driver stores the first and the last time of Python as infinite ones. Pure."""

from datetime import UTC, datetime

from khala.domain.errors import InvalidInput

FIRST = datetime(1970, 1, 1, tzinfo=UTC)
END = datetime(9999, 1, 1, tzinfo=UTC)


def check_storable(moment: datetime | None, path: str) -> None:
    """Raise `InvalidInput` for a time that cannot be stored."""
    if moment is not None and not is_storable(moment):
        raise InvalidInput("A time is from 1970 to 9998, and has an offset from UTC.", path=path)


def is_storable(moment: datetime) -> bool:
    """Whether a time has an offset from UTC and is from 1970 to 9998, so that it is read as it was written."""
    return moment.tzinfo is not None and FIRST <= moment < END
