"""Recognises, in the output of a failed command, that its service refused it because of a rate limit."""

import re
from datetime import datetime

import msgspec

from khala.domain.plans.clock_times import seconds_until
from khala.domain.plans.completion import prose_lines

MAX_LINES = 200
"""Lines at the end of a text that are read."""
MAX_LINE_CHARACTERS = 1_000
"""Characters at the beginning of a line that are read."""
MAX_RETRY_AFTER_SECONDS = 30 * 86_400.0
"""Seconds. A service that tells a longer time tells none."""

_WORDS = r"(?:\W+[\w']+){0,5}?\W+"
_LIMITS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # The status, where it is called a status, an error or a code, or begins the line.
        r"\b(?:http(?:/[\d.]+)?|(?:status|error)(?:[ _-]?code)?|code)\b[\"']?\s*[:=]?\s*[\"'(\[]?(?:429|529)\b(?![.:])",
        r"^\W*(?:429|529)\W+(?:too many requests|rate|overloaded|resource|\{)",
        r"\btoo many requests\b",
        # The names of errors.
        r"\brate_?limit_?(?:error|exceeded|reached)\b|\boverloaded_error\b|\bresource_exhausted\b",
        # Sentences.
        rf"\b(?:rate|usage|request|token|hour|daily|weekly|monthly)[ -]limits?\b{_WORDS}?(?:reached|exceeded|hit)\b",
        rf"\b(?:exceed\w*|hit|reached|over|due to)\b{_WORDS}(?:rate|usage|request|token)[ -]limit",
        r"\b(?:hit|reached) your (?:\w+ )?limit\b",
        r"\b(?:are|is|was|been|being|got) (?:\w+ )?rate[ -]limited\b",
        r"^\W*(?:error\W+)?rate[ -]?limit(?:ed)?(?:\W*$|[:,])",
        rf"\bquota\b{_WORDS}?exceeded\b|\bexceeded\b{_WORDS}quota\b",
        r"^\W*(?:api )?(?:error\W+)?overloaded\W*$",
        r"\b(?:model|server|service|api|provider|engine)s? (?:is|are) (?:\w+ )?overloaded\b",
    )
)
_CODE_SPAN = re.compile(r"`[^`]*`")
_NAME = re.compile(r"[/\\@]|\w\.(?!\w+exception\b)[a-z]\w*(?:\W|$)")
"""What a word with a path, an address, the name of a package or of a file contains."""
_CODE = re.compile(r"^\s*(?:\+|@@|//|#|[\W\d]*\|)|[=!]==?|=>|\w\(|;\s*$")
_ABOUT = re.compile(
    r"\b(?:implement\w*|refactor\w*|middleware|limiter|add(?:s|ed|ing)|handl\w+|tests?|testing|expect(?:s|ed)?)\b",
    re.IGNORECASE,
)
"""Words of texts about rate limits, such as the description of a change."""

_UNITS = {"ms": 0.001, "milli": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_TERM = r"\d{1,9}(?:\.\d{1,9})?\s*(?:ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)(?![a-z])"
_DURATION = rf"{_TERM}(?:(?:,|\s|and){{0,3}}{_TERM}){{0,3}}"
_PARTS = re.compile(r"(?P<amount>\d+(?:\.\d+)?)\s*(?P<unit>ms|milli|s|m|h|d)", re.IGNORECASE)
_HEADER = re.compile(
    r"\bretry[-_ ]?(?:after|delay)(?P<ms>[-_]?ms)?\b[\"']?\s*[:=]?\s*[\"']?"
    rf"(?P<time>{_DURATION}|\d{{1,9}}(?:\.\d{{1,9}})?)",
    re.IGNORECASE,
)
_SENTENCE = re.compile(
    rf"\b(?:again|retry|retrying|wait|resets?|available)\s+(?:in|for|after)?\s*(?P<time>{_DURATION})", re.IGNORECASE
)
_EPOCH = re.compile(r"\b(?:reached|resets?)\W{1,3}(?:at )?(?P<epoch>1\d{9})\b", re.IGNORECASE)


class RateLimitNotice(msgspec.Struct, frozen=True, kw_only=True):
    """A service refused a request because of a rate limit. `retry_after` is in seconds, None if no time is told."""

    retry_after: float | None = None


def find_rate_limit(text: str, now: datetime) -> RateLimitNotice | None:
    """The rate limit that this error output reports, None if it reports none.

    A number such as 429 counts only where it is called a status or an error, not in code, names, paths or line numbers.
    A time of the day without a zone is one of `now`'s zone.
    """
    lines = [line[:MAX_LINE_CHARACTERS] for line in prose_lines(text)][-MAX_LINES:]
    found = next((index for index in reversed(range(len(lines))) if _is_rate_limit(lines[index])), None)
    if found is None:
        return None
    # The time may be in the same line, or in one of the fields and headers around it.
    around = [lines[found], *lines[found + 1 :], *reversed(lines[:found])]
    return RateLimitNotice(retry_after=next((time for line in around if (time := _retry_after(line, now))), None))


def _is_rate_limit(line: str) -> bool:
    if _CODE.search(line) or _ABOUT.search(line):
        return False
    words = " ".join(word for word in _CODE_SPAN.sub(" ", line).split() if not _NAME.search(word))
    return any(pattern.search(words) for pattern in _LIMITS)


def _retry_after(line: str, now: datetime) -> float | None:
    if match := _EPOCH.search(line):
        seconds = int(match["epoch"]) - now.timestamp()
    elif match := _HEADER.search(line):
        seconds = _seconds(match["time"], 0.001 if match["ms"] else 1.0)
    elif match := _SENTENCE.search(line):
        seconds = _seconds(match["time"], 1.0)
    else:
        seconds = seconds_until(line, now) or 0
    return seconds if 0 < seconds <= MAX_RETRY_AFTER_SECONDS else None


def _seconds(text: str, scale: float) -> float:
    """The seconds of a duration such as `1m30.5s` or `2 hours and 5 minutes`. A bare number is in units of `scale`."""
    terms = [float(part["amount"]) * _UNITS[part["unit"].lower()] for part in _PARTS.finditer(text)]
    return sum(terms) if terms else float(text) * scale
