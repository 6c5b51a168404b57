"""Paths in an agent's workspace, and patterns of them. They are names only: none leads to a file of the machine."""

import re
import unicodedata

from khala.blobs.patterns import LinePattern, compile_pattern
from khala.tools.port import ToolError

LONGEST = 512
"""Characters of a path."""
DEEPEST = 16
"""Steps of a path."""
ROOM = 3
"""What was claimed along with a thread may be deeper and longer by a folder or two."""
LONGEST_GLOB = 256
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def normal(path: str, *, new: bool = False) -> str:
    """The path as it is stored: relative, without empty steps and `.`. Raises `ToolError` for one that can't be."""
    steps = _steps(path)
    if not steps:
        raise ToolError("path: this names no file.", code="bad_arguments")
    normalised = "/".join(steps)
    many = 1 if new else ROOM
    if len(normalised) > LONGEST * many or len(steps) > DEEPEST * many:
        raise ToolError(f"path: it has at most {LONGEST} characters and {DEEPEST} steps.", code="bad_arguments")
    return normalised


def folder(path: str) -> str:
    """What the paths of all files in this folder begin with: nothing for the whole workspace."""
    steps = _steps(path)
    return "/".join(steps) + "/" if steps else ""


def _steps(path: str) -> list[str]:
    if CONTROL.search(path):
        raise ToolError("path: it has control characters.", code="bad_arguments")
    if path.startswith("/"):
        raise ToolError("path: it must be relative to the workspace, so without / in front.", code="bad_arguments")
    steps = [step for step in unicodedata.normalize("NFC", path).split("/") if step not in ("", ".")]
    if ".." in steps:
        raise ToolError("path: .. leads nowhere here.", code="bad_arguments")
    return steps


def glob(pattern: str, *, names: bool = False) -> LinePattern:
    """What finds the paths that this pattern fits: `*`, `?`, `[a-z]`, `{a,b}`, and `**` for any number of folders.

    With `names` a pattern without `/` fits files of that name in any folder. Raises `ToolError`.
    """
    if not pattern or len(pattern) > LONGEST_GLOB or CONTROL.search(pattern):
        message = f"A glob has 1 to {LONGEST_GLOB} characters, and no control characters."
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
    """A set of characters, none of which is special but `-` between two."""
    inner = text[1:-1]
    out = inner[:1] in ("!", "^")
    chosen = re.sub(r"([\\\[\]^&~|])", r"\\\1", inner[1:] if out else inner)
    return f"[^/{chosen}]" if out else f"[{chosen}]"
