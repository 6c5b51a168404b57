"""The built page: the size of the scripts that it needs to open, and the contents of its lock file."""

import gzip
import json
import re
from pathlib import Path

WEB = Path(__file__).parents[2] / "app" / "web"
DIST = WEB / "dist"
MOST_BYTES = 90_000
"""Compressed script that may be needed before anything is seen."""


def needed(file: Path) -> set[Path]:
    """A script, and all scripts that it imports before it runs."""
    found: set[Path] = set()
    waiting = [file]
    while waiting:
        script = waiting.pop()
        if script not in found:
            found.add(script)
            # The build writes `import{a}from"./b.js"` and `import"./c.js"`; a lazy import is `import("./d.js")`.
            paths = re.findall(r"(?:from|import)\s*[\"'](\.[^\"']+\.js)[\"']", script.read_text())
            waiting += [(script.parent / path).resolve() for path in paths]
    return found


def test_the_page_opens_with_less_than_90_kilobytes_of_compressed_script() -> None:
    html = (DIST / "index.html").read_text()
    entries = re.findall(r"<script[^>]+src=\"/web/([^\"]+)\"", html)
    assert entries
    preloaded = re.findall(r"<link[^>]+modulepreload[^>]+href=\"/web/([^\"]+)\"", html)
    scripts = {path for name in (*entries, *preloaded) for path in needed((DIST / name).resolve())}
    sizes = {path.name: len(gzip.compress(path.read_bytes(), 9)) for path in scripts}
    assert sum(sizes.values()) < MOST_BYTES, sizes


def test_the_page_loads_nothing_from_another_site() -> None:
    html = (DIST / "index.html").read_text()
    assert re.findall(r"(?:src|href)=\"(?:https?:)?//[^\"]*", html) == []
    styles = "".join(path.read_text() for path in DIST.rglob("*.css"))
    assert re.findall(r"url\([\"']?(?:https?:)?//[^)]*|@import", styles) == []


def test_the_lock_file_names_only_the_public_registry() -> None:
    packages = json.loads((WEB / "package-lock.json").read_text())["packages"]
    named = {package["resolved"].split("/")[2] for package in packages.values() if "resolved" in package}
    assert named <= {"registry.npmjs.org"}
    assert all("integrity" in package for path, package in packages.items() if path and not package.get("link"))
