"""Names for tools of MCP servers: unique, and valid for every model provider."""

import re
from collections.abc import Iterable
from hashlib import sha256

from khala.domain.tools import SEPARATOR

MAX_NAME_CHARACTERS = 64
MAX_PREFIX_CHARACTERS = 24
HASH_DIGITS = 8
"""Hex digits of a hash that is appended to make a name unique."""


def prefixes(servers: Iterable[str]) -> dict[str, str]:
    """The prefix of the names of each server's tools, by the server's name."""
    return _assign(servers, MAX_PREFIX_CHARACTERS, letter_first=True)


def full_names(prefix: str, tools: Iterable[str]) -> dict[str, str]:
    """The full name of each tool of a server, `server__tool`, of at most 64 characters."""
    max_characters = MAX_NAME_CHARACTERS - len(prefix) - len(SEPARATOR)
    return {
        tool: prefix + SEPARATOR + safe for tool, safe in _assign(tools, max_characters, letter_first=False).items()
    }


def _assign(names: Iterable[str], max_characters: int, *, letter_first: bool) -> dict[str, str]:
    """Assign a unique and valid name to each name. A valid name is never changed."""
    safe = {name: _safe(name, letter_first=letter_first) for name in names}
    taken: set[str] = set()
    assigned: dict[str, str] = {}
    for name in sorted(safe, key=lambda name: (safe[name] != name, name)):
        if len(safe[name]) > max_characters or safe[name] in taken:
            # The cut may come after an underscore, and two of them are the separator.
            cut = safe[name][: max_characters - HASH_DIGITS - 1].rstrip("_")
            safe[name] = f"{cut}_{sha256(name.encode()).hexdigest()[:HASH_DIGITS]}"
        taken.add(safe[name])
        assigned[name] = safe[name]
    return assigned


def _safe(name: str, *, letter_first: bool) -> str:
    """The name without invalid characters, and without anything that looks like the separator."""
    plain = re.sub(r"_{2,}", "_", re.sub(r"[^A-Za-z0-9_-]", "_", name)).strip("_")
    if not plain or (letter_first and not plain[0].isalpha()):
        plain = f"x{plain}"
    return plain
