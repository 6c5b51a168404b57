"""Hook of mkdocs: inserts generated references, and checks and rewrites links that leave the folder `docs`."""

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from infra import reference

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
TOP_LEVEL = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "README.md": "index.md"}
"""Files of the top folder, and the page of the site that shows each."""
REFERENCES: dict[str, Callable[[], str]] = {
    "<!-- REST API -->": reference.rest_api,
    "<!-- command line -->": reference.command_line,
    "<!-- metrics -->": reference.metrics_table,
}
"""Generators of the text that replaces a comment on a page."""
LINK = re.compile(r"(?<!!)\[([^\]\n]+)\]\(([^()\s]+)\)")


def on_files(files: Files, config: "MkDocsConfig") -> Files:
    """Add pages of files of the top folder."""
    for path in ("CONTRIBUTING.md", "CHANGELOG.md"):
        files.append(File.generated(config, TOP_LEVEL[path], content=(ROOT / path).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: "Page", **_: object) -> str:
    """Rewrite links that leave `docs/`, and insert references. Raises `PluginError` for a link to a missing file."""
    markdown = link_to_pages(markdown, page.file.src_uri)
    for comment, generate in REFERENCES.items():
        if comment in markdown:
            markdown = markdown.replace(comment, generate())
    return markdown


def link_to_pages(markdown: str, page: str) -> str:
    """The Markdown of a page with links to files of the repository as plain text, and all other links as they are."""
    origin = next((name for name, shown in TOP_LEVEL.items() if shown == page and page != "index.md"), f"docs/{page}")

    def rewrite(match: re.Match[str]) -> str:
        text, target = match.groups()
        if ":" in target or target.startswith("#"):
            return match.group()
        path, hash_, anchor = target.partition("#")
        there = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
        if there in TOP_LEVEL:
            there = f"docs/{TOP_LEVEL[there]}"
        elif not there.startswith("docs/"):
            if not (ROOT / there).exists():
                raise PluginError(f"{origin} links to {there}, which does not exist")
            return text
        shown = posixpath.relpath(there.removeprefix("docs/"), posixpath.dirname(page) or ".")
        return f"[{text}]({shown}{hash_}{anchor})"

    return _outside_of_blocks(markdown, lambda text: LINK.sub(rewrite, text))


def _outside_of_blocks(markdown: str, change: Callable[[str], str]) -> str:
    """Change all text except fenced code blocks."""
    pieces = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(piece if piece.startswith("```") else change(piece) for piece in pieces)
