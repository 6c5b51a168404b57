"""The documentation has the expected results of the conformance tests of MCP."""

from tests.clients.mcp_conformance.report import report
from tests.clients.mcp_conformance.suite import expected
from tests.support.server import ROOT


def test_the_documentation_has_the_expected_results() -> None:
    assert report(expected()) in (ROOT / "docs" / "mcp.md").read_text(encoding="utf-8")


def test_a_scenario_is_expected_once() -> None:
    for part in expected():
        assert not {*part.passes} & part.fails.keys(), part.title
        assert all(part.fails.values()), part.title
