"""The completion marker: the line with which an agent without tools says that it has completed its step."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

COMPLETION_MARKER = "<promise>COMPLETE</promise>"

_MARKER = re.compile(r" {0,3}<promise>[ \t]*complete[ \t]*</promise>[ \t]*", re.IGNORECASE)
_LINE_BREAK = re.compile(r"\r\n|\n|\r")
_FENCE = re.compile(r"(?P<fence>`{3,})[^`]*|(?P<tildes>~{3,}).*")
_LIST_MARK = re.compile(r"(?:[-*+]|[0-9]{1,9}[.)])(?:[ \t]+|$)")
_QUOTATIONS = {"`": "`", '"': '"', "“": "”", "«": "»"}
_QUOTATION_MARK = re.compile('[`"“”«»]')
MAX_INDENT = 3
"""Spaces before a line. A line with more spaces is code."""
TAB_SIZE = 4
MAX_LIST_COLUMN = 100
"""Characters of a line in which list items begin. It bounds the work for a line of many marks."""


@dataclass(frozen=True)
class _Fence:
    """The opening of a fenced code block: its characters, and the column of the list item that contains it."""

    mark: str
    column: int


def is_marked_complete(text: str) -> bool:
    """Whether the completion marker, in any case, is alone on a line of this Markdown text.

    A quoted marker does not count: in a code block, fenced or indented, in a block quote, or in a code span or
    quotation that began on an earlier line of the paragraph.
    """
    return any(_has_marker(paragraph) for paragraph in _paragraphs(text))


def _has_marker(paragraph: list[str]) -> bool:
    counts: Counter[str] = Counter()
    last_lines = {mark: index for index, line in enumerate(paragraph) for mark in _QUOTATIONS.values() if mark in line}
    for index, line in enumerate(paragraph):
        # A quotation that no later line closes is an apostrophe, an inch or a slip.
        is_quoted = any(
            _is_open(mark, counts) and last_lines.get(_QUOTATIONS[mark], -1) > index for mark in _QUOTATIONS
        )
        if not is_quoted and _MARKER.fullmatch(line):
            return True
        counts.update(_QUOTATION_MARK.findall(line))
    return False


def _is_open(mark: str, counts: Counter[str]) -> bool:
    closing = _QUOTATIONS[mark]
    return counts[mark] % 2 == 1 if closing == mark else counts[mark] > counts[closing]


def _paragraphs(text: str) -> Iterator[list[str]]:
    """The paragraphs outside of fenced code blocks and block quotes, as lines.

    A line that follows a block quote directly belongs to it, as in CommonMark.
    """
    paragraph: list[str] = []
    quoted = False
    for line in prose_lines(text):
        begins_quote = line.lstrip(" ").startswith(">") and _indent(line) <= MAX_INDENT
        if not line.strip() or (begins_quote and not quoted):
            if not quoted:
                yield paragraph
            paragraph, quoted = [], begins_quote
        else:
            paragraph.append(line)
    if not quoted:
        yield paragraph


def prose_lines(text: str) -> Iterator[str]:
    """The lines outside of fenced code blocks. An empty line stands for each line of such a block."""
    fence: _Fence | None = None
    column = 0
    for line in _LINE_BREAK.split(text):
        if fence is not None and line.strip() and _indent(line) < fence.column:
            fence = None  # The list item has ended, and its code block with it.
        if fence is not None:
            fence = None if _closes(fence, line) else fence
            yield ""
            continue
        if line.strip():
            column = _content_column(line, column)
        fence = _opening(line, column)
        yield "" if fence is not None else line


def _opening(line: str, column: int) -> _Fence | None:
    content = line.expandtabs(TAB_SIZE)[column:]
    match = _FENCE.fullmatch(content.strip(" "))
    if match is None or _indent(content) > MAX_INDENT:
        return None
    return _Fence(match["fence"] or match["tildes"], column)


def _closes(fence: _Fence, line: str) -> bool:
    mark = line.strip()
    is_mark = len(mark) >= len(fence.mark) and not mark.strip(fence.mark[0])
    return is_mark and _indent(line) - fence.column <= MAX_INDENT


def _content_column(line: str, column: int) -> int:
    """The column at which the content of the line's list item begins, 0 outside of lists."""
    text = line[:MAX_LIST_COLUMN].expandtabs(TAB_SIZE)
    if _indent(text) < column:
        column = 0
    while _indent(text[column:]) <= MAX_INDENT and (mark := _LIST_MARK.match(text[column:].lstrip(" "))):
        column += _indent(text[column:]) + mark.end()
    return column


def _indent(line: str) -> int:
    expanded = line.expandtabs(TAB_SIZE)
    return len(expanded) - len(expanded.lstrip(" "))
