"""Patterns of stream names: `*` stands for one segment between slashes, `**` for any number of segments, also none."""

from khala.domain.errors import InvalidInput
from khala.domain.streams.stream_names import validated_name

ONE = "*"
ANY = "**"
MAX_SEGMENTS = 64


def validated_pattern(pattern: str) -> str:
    """Return the pattern without slashes at its ends. Raises `InvalidInput`."""
    valid = validated_name(pattern)
    segments = valid.split("/")
    if len(segments) > MAX_SEGMENTS:
        raise InvalidInput(f"A pattern has at most {MAX_SEGMENTS} segments.", path="pattern")
    if any(ONE in segment and segment not in (ONE, ANY) for segment in segments):
        raise InvalidInput("In a pattern, * and ** are whole segments, as in events/*.", path="pattern")
    return valid


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern matches the name. It takes at most the product of their numbers of segments in steps."""
    wanted, found = pattern.split("/"), name.split("/")
    at = position = 0
    retry_at, retry_position = -1, 0
    while position < len(found):
        if at < len(wanted) and wanted[at] == ANY:
            retry_at, retry_position = at, position
            at += 1
        elif at < len(wanted) and wanted[at] in (ONE, found[position]):
            at += 1
            position += 1
        elif retry_at >= 0:
            retry_position += 1
            at, position = retry_at + 1, retry_position
        else:
            return False
    return all(segment == ANY for segment in wanted[at:])
