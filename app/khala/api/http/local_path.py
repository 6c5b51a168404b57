"""Paths on this server to which a browser returns from another one."""

from urllib.parse import urlsplit

MAX_PATH_CHARACTERS = 8192
"""Of the path to return to. The one of an app's request for access has its whole query."""


def local_path(given: str) -> str:
    """Return a path on this server. A URL elsewhere becomes `/`."""
    split = urlsplit(given)
    is_local = given.startswith("/") and not given.startswith(("//", "/\\")) and not split.scheme and not split.netloc
    return (
        given if is_local and given.isprintable() and "\\" not in given and len(given) <= MAX_PATH_CHARACTERS else "/"
    )
