"""Converts a web page to text without HTML, in time linear in its length."""

import codecs
import html
import re
from collections.abc import Iterator
from string import ascii_lowercase, ascii_uppercase

BLOCKS = frozenset((
    "address", "article", "aside", "blockquote", "body", "br", "dd", "details", "dialog", "div", "dl", "dt", "fieldset",
    "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav",
    "ol", "option", "p", "pre", "section", "summary", "table", "tbody", "td", "tfoot", "th", "thead", "title", "tr",
    "ul",
))  # fmt: skip
"""Elements that begin on a new line."""
INVISIBLE = ("script", "style", "template", "noscript", "svg", "iframe", "textarea", "select", "object")
"""Elements whose content is not shown."""
TAG = re.compile(r"</?([a-zA-Z][a-zA-Z0-9-]{0,30})[^>\"']*(?:\"[^\"]*\"[^>\"']*|'[^']*'[^>\"']*)*>")
LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
MARKUP = re.compile(r"<[a-zA-Z/!?]")
TAG_NAME = re.compile(r"</?([a-zA-Z][a-zA-Z0-9-]{0,30})")
MAX_TAG_CHARACTERS = 2048
"""Characters of a tag in which quoted values are recognised; a longer tag ends at its first `>`."""
CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?([A-Za-z0-9_-]{1,40})", re.IGNORECASE)
SAFE_CODECS = re.compile(
    r"utf-?8|utf-?16|ascii|iso8859-\d+|cp\d+|gb\w+|big5\w*|euc\w+|shift\w+|koi8-\w|mac-\w+|iso2022\w+"
)
"""Allowed codecs, by Python's names: text codecs that decode in linear time."""


def decode(content: bytes, charset: str | None) -> str:
    """Decode a page with the given charset, or the one that the page declares, or UTF-8."""
    if charset is None:
        named = CHARSET.search(content[:4096])
        charset = named[1].decode() if named else "utf-8"
    try:
        codec = codecs.lookup(charset).name
    except (LookupError, ValueError, UnicodeError):
        codec = "utf-8"
    return content.decode(codec if SAFE_CODECS.match(codec) else "utf-8", "replace")


def extract_text(page: str) -> tuple[str, str]:
    """The page's title and its text: one line for each block, without empty lines."""
    title = ""
    lines: list[str] = []
    line: list[str] = []
    in_title = False
    for piece, block in _pieces(page):
        if block is not None:
            lines.append("".join(line))
            line = ["# "] if block in ("h1", "h2", "h3") else ["- "] if block == "li" else []
            in_title = block == "title"
        elif in_title and not title:
            title = " ".join(piece.split())
        else:
            line.append(piece)
    stripped = (" ".join(text.split()) for text in [*lines, "".join(line)])
    return title, "\n".join(text for text in stripped if text not in ("", "#", "-"))


def _pieces(page: str) -> Iterator[tuple[str, str | None]]:
    """The pieces of text in the page; for a tag of a block, its name, or `/` where the block ends."""
    lower = page.translate(LOWER)
    at = 0
    while at < len(page):
        markup = MARKUP.search(page, at)
        tag = len(page) if markup is None else markup.start()
        if tag > at:
            yield _unescaped(page[at:tag]), None
        if tag == len(page):
            return
        at, name, closing = _read_tag(page, lower, tag)
        if at == tag + 1:
            yield "<", None
        elif name in BLOCKS:
            yield "", "/" if closing else name
        elif name == "":
            yield "", None


def _read_tag(page: str, lower: str, tag: int) -> tuple[int, str, bool]:
    """The end of the tag, including the content of an invisible element; its name; and whether it is a closing tag."""
    if page.startswith("<!--", tag):
        return _end_of(page, "-->", tag + 4), "", False
    if page.startswith(("<!", "<?"), tag):
        return _end_of(page, ">", tag), "", False
    match = TAG.match(page, tag, min(len(page), tag + MAX_TAG_CHARACTERS))
    if match is not None:
        name, end = match[1].lower(), match.end()
    else:
        start = TAG_NAME.match(page, tag)
        if start is None:
            return tag + 1, "", False
        name, end = start[1].lower(), _end_of(page, ">", tag)
    closing = page.startswith("</", tag)
    if name in INVISIBLE and not closing and not page.startswith("/>", end - 2):
        end = _end_of(page, ">", _end_of(lower, f"</{name}", end) - 1)
    return end, name, closing


def _end_of(page: str, marker: str, start: int) -> int:
    """The position after the next marker, or the page's end if there is none."""
    position = page.find(marker, start)
    return len(page) if position < 0 else position + len(marker)


def _unescaped(piece: str) -> str:
    try:
        return html.unescape(piece)
    except ValueError:  # a character reference with too many digits
        return piece
