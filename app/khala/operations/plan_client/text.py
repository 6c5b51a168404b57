"""Text of servers, models and commands, made safe for a terminal and for one line of a log."""

import re

ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|[ -/]*[0-~])?|\x9b[0-?]*[ -/]*[@-~]"
)
"""Escape sequences of ECMA-48: colours, movements, titles and links."""
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Other control characters, those that change the direction of text, and halves of surrogate pairs."""
TAB_WIDTH = 4


def clean(text: str) -> str:
    """The text without anything that could move the cursor, change colours or hide other text. Line feeds stay."""
    return CONTROLS.sub("", ESCAPES.sub("", text.replace("\r\n", "\n"))).expandtabs(TAB_WIDTH)


def one_line(text: str, most: int) -> str:
    """The text on one line, cut to so many characters."""
    joined = " ".join(clean(text[: 4 * most]).split())
    return joined if len(joined) <= most else f"{joined[: most - 1]}…"
