"""The output of a tool is stored, or becomes a failure: it never ends the run."""

from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from khala.blobs.blob_service import BlobService
from khala.blobs.spool import open_spool
from khala.domain.tools import ToolActor
from khala.runs.tool_results import RUN_INLINE_BYTES, InlineAllowance, StoredOutput, one_line, store_output
from khala.tools.port import CallResult

ACTOR = ToolActor(owner_id=UUID(int=1), thread_id=UUID(int=2))
NO_BLOB_SERVICE = cast("BlobService", None)


async def stored(tmp_path: Path, result: CallResult, written: bytes = b"") -> StoredOutput:
    """The stored output of a call that has written these bytes to its sink."""
    async with open_spool(tmp_path, 1 << 20) as sink:
        await sink.write(written)
        return await store_output(result, sink, NO_BLOB_SERVICE, ACTOR, InlineAllowance())


async def test_small_output_is_in_the_part(tmp_path: Path) -> None:
    assert (await stored(tmp_path, CallResult(output={"a": 1}))).output == {"a": 1}
    assert (await stored(tmp_path, CallResult(), b"hello\nyou")).output == "hello\nyou"
    assert (await stored(tmp_path, CallResult(), b"hello\nyou")).summary == "hello you"
    assert (await stored(tmp_path, CallResult(output=""))).output == ""


@pytest.mark.parametrize("odd", ["\ud800", {"a": "\ud800"}, object(), {1: {2, 3, object()}}])
async def test_output_that_is_not_json_is_a_failure_with_a_summary(tmp_path: Path, odd: Any) -> None:
    found = await stored(tmp_path, CallResult(output=odd))
    assert found.ok is isinstance(odd, str)  # surrogates in a text are replaced
    assert found.summary


async def test_failures_have_a_code(tmp_path: Path) -> None:
    assert (await stored(tmp_path, CallResult(ok=False, output="no"))).code == "failed"
    assert (await stored(tmp_path, CallResult(ok=False, output="no", code="timeout"))).code == "timeout"
    assert (await stored(tmp_path, CallResult(output="yes"))).code is None


def test_the_inline_output_of_a_run_is_limited_and_then_each_part_holds_less() -> None:
    allowance = InlineAllowance()
    assert not allowance.take(3001)
    taken = 0
    while allowance.take(3000):
        taken += 3000
    assert RUN_INLINE_BYTES <= taken < RUN_INLINE_BYTES + 3000
    assert allowance.take(300)
    assert not allowance.take(301)


def test_a_summary_is_one_line_of_at_most_120_characters() -> None:
    assert one_line("a\n  b\tc") == "a b c"
    assert len(one_line("word " * 100)) == 120
    assert one_line("x\0y") == "x\ufffdy"
    assert one_line("x" * 120) == "x" * 120
    assert one_line("x" * 121) == "x" * 119 + "…"
