"""Decodes the output of a program into plain text, chunk by chunk."""

import codecs
import re

_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # Colours, and movements of the cursor.
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # Titles, links and other strings.
    r"|\x1b[ -/]*[0-Z\\^-~]"  # Other escapes. Those that begin a longer sequence are left out.
)
_UNFINISHED = re.compile(r"(?:(?:\x1b\[|\x9b)[0-?]*[ -/]*|\x1b[\]PX^_][^\x07\x1b]*\x1b?|\x1b[ -/]*|\r)\Z")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
MAX_SEQUENCE_CHARACTERS = 4_096
"""Characters of an unfinished sequence. A longer one is no sequence, and only its control characters are removed."""


class TerminalText:
    """Removes escape sequences and control characters, and replaces invalid UTF-8. Line breaks become newlines."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._unfinished = ""

    def feed(self, data: bytes) -> str:
        """The text of the next bytes. The beginning of a sequence or character is held until it is complete."""
        text = self._unfinished + self._decoder.decode(data)
        text = _SEQUENCE.sub("", text)
        rest = _UNFINISHED.search(text, max(0, len(text) - MAX_SEQUENCE_CHARACTERS))
        self._unfinished = "" if rest is None else rest[0]
        return _plain(text[: len(text) - len(self._unfinished)])

    def end(self) -> str:
        """The text of what is held, at the end of the output."""
        text, self._unfinished = self._unfinished + self._decoder.decode(b"", final=True), ""
        return _plain(text)


def _plain(text: str) -> str:
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("", text)
