"""Names of other servers' tools, made such that every model's provider takes them and no two are the same."""

import re
from collections.abc import Iterable
from hashlib import sha256

from khala.domain.tools import SEPARATOR

LONGEST = 64
LONGEST_PREFIX = 24
DIGITS = 8
"""Hex digits that tell apart what would be the same."""


def prefixes(servers: Iterable[str]) -> dict[str, str]:
    """For each server's name what its tools' names begin with."""
    return _assigned(servers, LONGEST_PREFIX, letter_first=True)


def full_names(prefix: str, tools: Iterable[str]) -> dict[str, str]:
    """For each of a server's tools the name that it has here, `server__tool`, of 64 characters at most."""
    longest = LONGEST - len(prefix) - len(SEPARATOR)
    return {tool: prefix + SEPARATOR + safe for tool, safe in _assigned(tools, longest, letter_first=False).items()}


def _assigned(names: Iterable[str], longest: int, *, letter_first: bool) -> dict[str, str]:
    """A name that can stay as it is does so, whatever others there are."""
    safe = {name: _safe(name, letter_first=letter_first) for name in names}
    taken: set[str] = set()
    assigned: dict[str, str] = {}
    for name in sorted(safe, key=lambda name: (safe[name] != name, name)):
        if len(safe[name]) > longest or safe[name] in taken:
            safe[name] = f"{safe[name][: longest - DIGITS - 1]}_{sha256(name.encode()).hexdigest()[:DIGITS]}"
        taken.add(safe[name])
        assigned[name] = safe[name]
    return assigned


def _safe(name: str, *, letter_first: bool) -> str:
    """Without what is not allowed, and without anything that could be taken for the separator."""
    plain = re.sub(r"_{2,}", "_", re.sub(r"[^A-Za-z0-9_-]", "_", name)).strip("_")
    if not plain or (letter_first and not plain[0].isalpha()):
        plain = f"x{plain}"
    return plain
