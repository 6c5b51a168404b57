"""The documentation site: complete, without dead links, and usable without a network."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mkdocs.exceptions import PluginError

from infra import docs_site, reference
from khala.tools.tool_registry import ToolRegistry, ToolRegistryOptions

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LOADED = r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href|srcset)=\"([^\"]+)\""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it; a warning fails the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "--quiet", "build", "-f", "infra/mkdocs.yml", "-d", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_loads_nothing_from_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href|srcset)=\"([^\"]+)\"", page.read_text()
        )
        assert loaded
        assert not [address for address in loaded if re.match(r"(?:https?:)?//", address)]
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//|@import", style.read_text())


def test_every_command_route_and_metric_is_in_the_reference(site: Path) -> None:
    for page in ("rest", "cli", "metrics"):
        assert "<!-- " not in re.sub(r"<(script|style).*?</\1>", "", (site / "reference" / f"{page}.html").read_text())
    rest, cli, metrics = reference.rest_api(), reference.command_line(), reference.metrics_table()
    assert rest.count("\n### `") > 60
    assert "### `POST /api/threads/{thread_id}/send`" in rest
    assert "### `POST /v1/chat/completions`" in rest
    assert "## khala restore settle" in cli
    assert "| `khala_flush_parts_total` | counter |" in metrics
    assert "| `khala_queue_runs` | gauge | `status` |" in metrics


def test_every_built_in_tool_is_documented() -> None:
    nothing: Any = None
    registry = ToolRegistry(nothing, nothing, sandbox=None, connections=None, options=ToolRegistryOptions())
    documented = (ROOT / "docs" / "tools.md").read_text()
    assert not [name for name in registry.reserved_names if f"`{name}`" not in documented]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_of_the_repository_that_is_named_exists(page: Path) -> None:
    paths = re.findall(r"`((?:app|infra|tests|migrations)/[\w/.-]+)[ `]", page.read_text())
    assert not [path for path in paths if "NNNN" not in path and not (ROOT / path).exists()]


def test_links_to_files_of_the_repository_become_text_and_others_stay() -> None:
    text = "[a](../infra/nginx.conf) [b](tools.md#x) [c](../CHANGELOG.md) [d](https://example.com/)\n```\n[e](nowhere)\n```"
    made = docs_site.link_to_pages(text, "operations.md")
    assert made == "a [b](tools.md#x) [c](changelog.md) [d](https://example.com/)\n```\n[e](nowhere)\n```"
    assert docs_site.link_to_pages("[a](docs/tools.md)", "contributing.md") == "[a](tools.md)"
    assert docs_site.link_to_pages("[a](../../README.md)", "how-to/x.md") == "[a](../index.md)"


def test_a_link_to_a_file_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(PluginError, match="nothing"):
        docs_site.link_to_pages("[a](../infra/nothing.md)", "operations.md")


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "infra/README.md"])
def test_links_of_pages_outside_the_site_lead_to_files(name: str) -> None:
    page = ROOT / name
    targets = re.findall(r"(?:\]\(|src(?:set)?=\")([^)\"\s:#]+)(?:#[^)\s]*)?[)\"]", page.read_text())
    assert not [target for target in targets if not (page.parent / target).exists() and "images/" not in target]
