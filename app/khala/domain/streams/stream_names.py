"""Names of streams: the part of the URL after `/v1/stream/`."""

from urllib.parse import unquote, urlsplit

from khala.domain.errors import InvalidInput

PREFIX = "/v1/stream/"
MAX_NAME_BYTES = 1024
CONTROL_SEGMENT = "__ds"
"""The first segment of the paths of the protocol's own resources."""
THREADS_SEGMENT = "threads"
"""The first segment of the read-only streams of threads."""


def validated_name(path: str) -> str:
    """Return the name of the stream at this path. Raises `InvalidInput`."""
    name = path.strip("/")
    if not name or len(name.encode(errors="surrogatepass")) > MAX_NAME_BYTES or not name.isprintable():
        raise InvalidInput(f"A stream has a name of 1 to {MAX_NAME_BYTES} bytes without control characters.")
    return name


def is_reserved(name: str) -> bool:
    """Whether clients cannot create a stream with this name."""
    return name.partition("/")[0] in (CONTROL_SEGMENT, THREADS_SEGMENT)


def source_name(path: str) -> str:
    """Return the name of the stream at this URL path, as `Stream-Forked-From` has it. Raises `InvalidInput`."""
    try:
        decoded = unquote(urlsplit(path).path)
    except ValueError:
        # The URL has a host that is malformed.
        decoded = ""
    if not decoded.startswith(PREFIX):
        raise InvalidInput(f"Stream-Forked-From must be the path of a stream, as {PREFIX}a.", path="Stream-Forked-From")
    return validated_name(decoded.removeprefix(PREFIX))
