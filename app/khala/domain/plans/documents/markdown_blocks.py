"""The blocks of a Markdown document with their lines: a thin layer over markdown-it."""

import re
import textwrap
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from khala.domain.errors import InvalidInput
from khala.domain.plans.documents.plan_document import check_size, clean_line

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode

MAX_LINES = 10_000
"""The parser takes up to 60 µs for a line."""
_BLOCKS = ("blockquote", "code", "fence", "heading", "hr", "html_block", "lheading", "list")
_BOX = re.compile(r"\[([ xX])\]\*?(?:\s+|$)")
_MARKER = re.compile(r"[ \t>]*(?:[-+*]|\d{1,9}[.)])[ \t]+(?:\[[ xX]\]\*?(?:[ \t]+|$))?")
_QUOTE = re.compile(r"^[ \t]*>[ ]?", re.MULTILINE)
_FRONT_MATTER = re.compile(r"\A---\n(?:.*\n)*?---(?=\n|\Z)")


class MarkdownBlock:
    """A block and its place in the document. `line` counts from 1."""

    def __init__(self, node: "SyntaxTreeNode", lines: Sequence[str]) -> None:
        self._node = node
        self._lines = lines
        self.type: str = node.type
        self.children = [MarkdownBlock(child, lines) for child in node.children if child.type != "inline"]

    @property
    def line(self) -> int:
        """The number of its first line."""
        return self._range[0] + 1

    @property
    def level(self) -> int:
        """The level of a heading, from 1 to 6."""
        return int(self._node.tag[1:])

    @property
    def text(self) -> str:
        """The text of a heading or paragraph; of an item, that of the paragraph with which it begins."""
        if self.type == "list_item":
            return self.children[0].text if self.children and self.children[0].type == "paragraph" else ""
        inlines = [child.content for child in self._node.children if child.type == "inline"]
        return "\n".join(inlines)

    @property
    def box(self) -> str | None:
        """The character between the brackets of a checklist's item, or None."""
        found = _BOX.match(self.text) if self.type == "list_item" else None
        return found[1] if found else None

    @property
    def source(self) -> str:
        """Its lines as they are in the document, without the indentation that they share."""
        first, end = self._range
        return textwrap.dedent("\n".join(self._lines[first:end])).rstrip()

    @property
    def quoted(self) -> str:
        """The text in a block quote."""
        return _QUOTE.sub("", self.source)

    @property
    def item_source(self) -> str:
        """All text of an item on one line, without its marker and box."""
        return clean_line(_MARKER.sub("", self.source, count=1))

    def items(self) -> "list[MarkdownBlock]":
        """The items of the lists that are its children."""
        return [item for block in self.children if block.type.endswith("_list") for item in block.children]

    @property
    def _range(self) -> tuple[int, int]:
        return self._node.map or (0, 0)


def without_box(text: str) -> str:
    """The text of a checklist's item."""
    return _BOX.sub("", text, count=1)


def parse_blocks(text: str) -> MarkdownBlock:
    """The document. Raises `InvalidInput` or `PayloadTooLarge` for a document that is too large."""
    from markdown_it.tree import SyntaxTreeNode

    try:
        check_size(len(text.encode()))
    except UnicodeEncodeError as error:
        raise InvalidInput("The document is not text in Unicode.") from error
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    text = _FRONT_MATTER.sub(lambda found: "\n" * found[0].count("\n"), text)
    lines = text.split("\n")
    if len(lines) > MAX_LINES:
        raise InvalidInput(f"The document has {len(lines):,} lines. At most {MAX_LINES:,} are allowed.")
    return MarkdownBlock(SyntaxTreeNode(_parser().parse(text)), lines)


@cache
def _parser() -> "MarkdownIt":
    from markdown_it import MarkdownIt  # the import takes about 50 ms

    parser = MarkdownIt("zero", {"html": True}).enable(list(_BLOCKS))
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser
