"""The built page: the size of the scripts that it needs to open; and the lock files of npm."""

import gzip
import json
import re
import subprocess
from pathlib import Path

from khala.settings.server import WELCOME

ROOT = Path(__file__).parents[2]
DIST = ROOT / "app" / "web" / "dist"
MOST_BYTES = 93_000
"""Compressed script that may be needed before anything is seen, with the messages of one language."""
MOST_CONSOLE_BYTES = 60_000


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


def test_the_page_opens_with_less_than_93_kilobytes_of_compressed_script() -> None:
    html = (DIST / "index.html").read_text()
    entries = re.findall(r"<script[^>]+src=\"/web/([^\"]+)\"", html)
    assert entries
    preloaded = re.findall(r"<link[^>]+modulepreload[^>]+href=\"/web/([^\"]+)\"", html)
    scripts = {path for name in (*entries, *preloaded) for path in needed((DIST / name).resolve())}
    catalogues = [path for path in DIST.glob("assets/*.js") if re.fullmatch(r"(?:en|de|es|fr|zh|ja|ar)-.*", path.stem)]
    assert len(catalogues) == 7
    assert scripts.isdisjoint(catalogues)  # only the chosen one is loaded
    scripts |= {path for path in catalogues if path.stem.startswith("en-")}
    sizes = {path.name: len(gzip.compress(path.read_bytes(), 9)) for path in scripts}
    assert sum(sizes.values()) < MOST_BYTES, sizes


def test_the_page_knows_the_servers_own_welcome() -> None:
    source = (ROOT / "app" / "web" / "src" / "conversation" / "welcome.ts").read_text()
    (known,) = re.findall(r'startsWith\("([^"]+)"\)', source)
    assert WELCOME.startswith(known)


def test_the_console_is_small_and_apart_from_the_page_and_its_service_worker() -> None:
    html = (DIST / "console" / "console.html").read_text()
    files = re.findall(r"(?:src|href)=\"(/web/console/assets/[^\"]+)\"", html)
    assert len(files) == 2
    scripts = list((DIST / "console" / "assets").glob("*.js"))
    assert sum(len(gzip.compress(path.read_bytes(), 9)) for path in scripts) < MOST_CONSOLE_BYTES
    assert "console/assets" not in (DIST / "index.html").read_text() + (DIST / "sw.js").read_text()


def test_the_page_and_the_console_load_nothing_from_another_site() -> None:
    html = (DIST / "index.html").read_text() + (DIST / "console" / "console.html").read_text()
    assert re.findall(r"(?:src|href)=\"(?:https?:)?//[^\"]*", html) == []
    styles = "".join(path.read_text() for path in DIST.rglob("*.css"))
    assert re.findall(r"url\([\"']?(?:https?:)?//[^)]*|@import", styles) == []


def test_no_lock_file_names_a_registry_and_each_has_the_hash_of_every_package() -> None:
    listed = subprocess.run(["git", "ls-files", "*package-lock.json"], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    files = listed.stdout.decode().split()
    assert len(files) > 5
    for file in files:
        packages = json.loads((ROOT / file).read_text())["packages"]
        assert [package for package in packages.values() if "://" in package.get("resolved", "")] == [], file
        installed = [package for path, package in packages.items() if path.startswith("node_modules/")]
        assert [one for one in installed if not one.keys() & {"integrity", "link"}] == [], file
