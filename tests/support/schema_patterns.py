"""Hooks for schemathesis that spare it most of its work: the checks of `schema_checks`, and patterns that compile soon.

Schemathesis joins the pattern of a string and the bounds beside it in one regular expression. With a bound of thousands
that takes up to a second to compile, for each operation. A pattern in an `allOf` has the same meaning and stays as it
is. The coverage phase makes its values at the bounds sooner if short bounds are joined.
"""

import os
from typing import Any

import schemathesis
from schemathesis import HookContext

from tests.support import schema_checks

__all__ = ["before_load_schema", "schema_checks"]

MIN_LENGTH = int(os.environ["KHALA_TEST_SEPARATED_LENGTH"])
"""The lowest `maxLength` from which a pattern is separated."""


@schemathesis.hook
def before_load_schema(_: HookContext, raw_schema: dict[str, Any]) -> None:
    """Separate the patterns of the document from bounds."""
    _separate_patterns(raw_schema)


def _separate_patterns(node: Any) -> None:
    if isinstance(node, list):
        for child in node:
            _separate_patterns(child)
    elif isinstance(node, dict):
        for child in node.values():
            _separate_patterns(child)
        is_long = node.get("maxLength", -1) >= MIN_LENGTH
        if is_long and isinstance(node.get("pattern"), str) and "allOf" not in node:
            node["allOf"] = [{"pattern": node.pop("pattern")}]
