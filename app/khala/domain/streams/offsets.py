"""Offsets of streams: positions as text that sorts like the numbers, and the two values with a meaning of their own.

The position of a JSON stream counts messages; that of any other stream counts bytes.
"""

import re

from khala.domain.errors import InvalidInput

BEGINNING = "-1"
"""An offset that a client may send: the beginning of the stream."""
NOW = "now"
"""An offset that a client may send: the end of the stream at the time of the request."""
MAX_POSITION = 10**16 - 1
"""The largest position: its digits fill the offset."""
_OFFSET = re.compile(r"0{16}_(\d{16})", re.ASCII)


def format_offset(position: int) -> str:
    """Return the offset of a position. Offsets of equal length sort like their positions."""
    return f"{0:016d}_{position:016d}"


def parse_offset(offset: str) -> int:
    """Return the position of an offset; 0 for `-1`. Raises `InvalidInput`; `now` is no position."""
    if offset == BEGINNING:
        return 0
    found = _OFFSET.fullmatch(offset)
    if found is None:
        raise InvalidInput("The offset is malformed. Send one that the server has returned, or -1.", path="offset")
    return int(found[1])
