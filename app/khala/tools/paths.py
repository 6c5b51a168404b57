"""Paths of the workspace, and glob patterns for them. Paths are names in the database, not files of the machine."""

import re
import unicodedata

from khala.blobs.patterns import LinePattern, compile_pattern
from khala.tools.port import ToolError

MAX_PATH_CHARACTERS = 512
MAX_PATH_SEGMENTS = 16
EXISTING_PATH_FACTOR = 3
"""Existing paths may be longer by this factor, because claiming a thread moves its files into folders."""
MAX_GLOB_CHARACTERS = 256
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def normalize(path: str, *, new: bool = False) -> str:
    """The path as it is stored: relative, without `.` and empty segments. Raises `ToolError` for an invalid path.

    `new`: the path of a file to create, which must be shorter.
    """
    segments = _segments(path)
    if not segments:
        raise ToolError("path: must name a file.", code="bad_arguments")
    normalized = "/".join(segments)
    factor = 1 if new else EXISTING_PATH_FACTOR
    if len(normalized) > MAX_PATH_CHARACTERS * factor or len(segments) > MAX_PATH_SEGMENTS * factor:
        raise ToolError(
            f"path: at most {MAX_PATH_CHARACTERS} characters and {MAX_PATH_SEGMENTS} segments are allowed.",
            code="bad_arguments",
        )
    return normalized


def folder_prefix(path: str) -> str:
    """The prefix of the paths of all files in this folder. It is empty for the whole workspace."""
    segments = _segments(path)
    return "/".join(segments) + "/" if segments else ""


def _segments(path: str) -> list[str]:
    if CONTROL.search(path):
        raise ToolError("path: control characters are not allowed.", code="bad_arguments")
    if path.startswith("/"):
        raise ToolError("path: must be relative to the workspace, without a leading /.", code="bad_arguments")
    segments = [segment for segment in unicodedata.normalize("NFC", path).split("/") if segment not in ("", ".")]
    if ".." in segments:
        raise ToolError("path: .. is not allowed.", code="bad_arguments")
    return segments


def compile_glob(pattern: str, *, names: bool = False) -> LinePattern:
    """Compile a glob pattern: `*`, `?`, `[a-z]`, `{a,b}`, and `**` for any number of folders.

    With `names`, a pattern without `/` matches names of files in any folder. Raises `ToolError` for an invalid pattern.
    """
    if not pattern or len(pattern) > MAX_GLOB_CHARACTERS or CONTROL.search(pattern):
        message = f"A glob has 1 to {MAX_GLOB_CHARACTERS} characters, and no control characters."
        raise ToolError(message, code="bad_arguments")
    normalized = unicodedata.normalize("NFC", pattern.removeprefix("./"))
    if names and "/" not in normalized:
        normalized = f"**/{normalized}"
    return compile_pattern(f"^(?:{_expression(normalized)})$")


TOKENS = re.compile(r"(?P<folders>(?:^|(?<=/))\*\*/)|(?P<rest>\*\*)|(?P<star>\*)|(?P<one>\?)|(?P<set>\[[!^]?\]?[^\]/]*\])|(?P<open>\{)|(?P<close>\})|(?P<comma>,)|(?P<plain>.)")  # fmt: skip  # noqa: E501
WILD = {"folders": "(?:[^/]+/)*", "rest": ".*", "star": "[^/]*", "one": "[^/]", "open": "(?:", "close": ")"}


def _expression(pattern: str) -> str:
    is_balanced = pattern.count("{") == pattern.count("}")
    depth, parts = 0, []
    for token in TOKENS.finditer(pattern):
        kind, text = token.lastgroup or "plain", token[0]
        if kind in ("open", "close", "comma") and not is_balanced:
            kind = "plain"
        depth += (kind == "open") - (kind == "close")
        if kind == "comma":
            parts.append("|" if depth > 0 else ",")
        elif kind == "set":
            parts.append(_set(text))
        else:
            parts.append(WILD.get(kind) or re.escape(text))
    return "".join(parts)


def _set(text: str) -> str:
    """The expression for a set of characters. Only `-` between two characters is special."""
    inner = text[1:-1]
    is_negated = inner[:1] in ("!", "^")
    chosen = re.sub(r"([\\\[\]^&~|])", r"\\\1", inner[1:] if is_negated else inner)
    return f"[^/{chosen}]" if is_negated else f"[{chosen}]"
