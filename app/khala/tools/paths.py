"""Paths of the workspace, and glob patterns for them. Paths are names in the database, not files of the machine."""

import re
import unicodedata

from khala.blobs.patterns import LinePattern, compile_pattern
from khala.tools.port import ToolError

MAX_PATH_CHARACTERS = 512
MAX_PATH_SEGMENTS = 16
EXISTING_PATH_FACTOR = 3
"""Existing paths may be so much longer: files of a claimed thread are moved into folders."""
MAX_GLOB_CHARACTERS = 256
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def normal(path: str, *, new: bool = False) -> str:
    """The path as it is stored: relative, without `.` and empty segments. Raises `ToolError` for an invalid path.

    `new`: the path of a file to create, which must be shorter.
    """
    segments = _segments(path)
    if not segments:
        raise ToolError("path: must name a file.", code="bad_arguments")
    normalised = "/".join(segments)
    factor = 1 if new else EXISTING_PATH_FACTOR
    if len(normalised) > MAX_PATH_CHARACTERS * factor or len(segments) > MAX_PATH_SEGMENTS * factor:
        raise ToolError(
            f"path: at most {MAX_PATH_CHARACTERS} characters and {MAX_PATH_SEGMENTS} segments are allowed.",
            code="bad_arguments",
        )
    return normalised


def folder(path: str) -> str:
    """The prefix of the paths of all files in this folder; it is empty for the whole workspace."""
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


def glob(pattern: str, *, names: bool = False) -> LinePattern:
    """A compiled glob pattern: `*`, `?`, `[a-z]`, `{a,b}`, and `**` for any number of folders.

    With `names` a pattern without `/` matches files of that name in any folder. Raises `ToolError` for an invalid one.
    """
    if not pattern or len(pattern) > MAX_GLOB_CHARACTERS or CONTROL.search(pattern):
        message = f"A glob has 1 to {MAX_GLOB_CHARACTERS} characters, and no control characters."
        raise ToolError(message, code="bad_arguments")
    wanted = unicodedata.normalize("NFC", pattern.removeprefix("./"))
    if names and "/" not in wanted:
        wanted = f"**/{wanted}"
    return compile_pattern(f"^(?:{_expression(wanted)})$")


TOKENS = re.compile(r"(?P<folders>(?:^|(?<=/))\*\*/)|(?P<rest>\*\*)|(?P<star>\*)|(?P<one>\?)|(?P<set>\[[!^]?\]?[^\]/]*\])|(?P<open>\{)|(?P<close>\})|(?P<comma>,)|(?P<plain>.)")  # fmt: skip  # noqa: E501
WILD = {"folders": "(?:[^/]+/)*", "rest": ".*", "star": "[^/]*", "one": "[^/]", "open": "(?:", "close": ")"}


def _expression(pattern: str) -> str:
    braces = pattern.count("{") == pattern.count("}")
    depth, built = 0, []
    for token in TOKENS.finditer(pattern):
        kind, text = token.lastgroup or "plain", token[0]
        if kind in ("open", "close", "comma") and not braces:
            kind = "plain"
        depth += (kind == "open") - (kind == "close")
        if kind == "comma":
            built.append("|" if depth > 0 else ",")
        elif kind == "set":
            built.append(_set(text))
        else:
            built.append(WILD.get(kind) or re.escape(text))
    return "".join(built)


def _set(text: str) -> str:
    """A set of characters; only `-` between two of them is special."""
    inner = text[1:-1]
    out = inner[:1] in ("!", "^")
    chosen = re.sub(r"([\\\[\]^&~|])", r"\\\1", inner[1:] if out else inner)
    return f"[^/{chosen}]" if out else f"[{chosen}]"
