"""Runs the fold on the cases of `fold_cases.json`, which also test the fold of the TypeScript client."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from khala.domain.fold import Content, fold
from khala.domain.parts import KINDS, PartData, read

CASES: list[dict[str, Any]] = msgspec.json.decode(Path(__file__).with_name("fold_cases.json").read_bytes())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_folded_up_to_any_part_and_then_on_it_is_what_the_file_says(case: dict[str, Any]) -> None:
    begin = msgspec.convert(case.get("begin", []), Content)
    parts = [_read(part) for part in case["parts"]]
    for k in range(len(parts) + 1):
        at_k = msgspec.json.decode(msgspec.json.encode(fold(begin, parts[:k])), type=Content)
        whole = msgspec.json.decode(msgspec.json.encode(fold(at_k, parts[k:])))
        assert whole == case["content"], f"cut at {k}"


def test_the_cases_have_every_kind_of_part_and_one_that_is_unknown() -> None:
    kinds = {part["kind"] for case in CASES for part in case["parts"]}
    assert set(KINDS) < kinds


def _read(part: dict[str, Any]) -> PartData | None:
    return read(part["kind"], msgspec.json.encode(part["data"]))
