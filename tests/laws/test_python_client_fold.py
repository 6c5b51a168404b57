"""Runs the fold of the Python client on the cases of `fold_cases.json`, which also test those of server and page."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from khala_client.content import Content, read_part
from khala_client.fold import fold
from khala_client.wire import decode, encode

CASES: list[dict[str, Any]] = msgspec.json.decode(Path(__file__).with_name("fold_cases.json").read_bytes())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_folded_up_to_any_part_and_then_on_it_is_what_the_file_says(case: dict[str, Any]) -> None:
    begin = decode(msgspec.json.encode(case.get("begin", [])), Content)
    parts = [read_part(part["kind"], msgspec.json.encode(part["data"])) for part in case["parts"]]
    for k in range(len(parts) + 1):
        at_k = decode(encode(fold(begin, parts[:k])), Content)
        assert msgspec.json.decode(encode(fold(at_k, parts[k:]))) == case["content"], f"cut at {k}"
