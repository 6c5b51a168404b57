"""The output of a tool is stored, or becomes a failure: it never ends the run."""

from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from khala.blobs.blob_service import BlobService
from khala.blobs.spool import Spool, open_spool
from khala.domain import ids
from khala.domain.errors import PayloadTooLarge
from khala.domain.parts import BlobRef
from khala.domain.tools import ToolActor
from khala.runs.tool_results import (
    MAX_FILES,
    RUN_INLINE_BYTES,
    InlineAllowance,
    StoredOutput,
    one_line,
    store_output,
)
from khala.tools.port import CallResult, ToolFile

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


class FakeBlobService:
    """Keeps blobs in memory, as long as they have less than 100 bytes."""

    def __init__(self, folder: Path) -> None:
        self.stored: dict[UUID, tuple[str, bytes]] = {}
        self._folder = folder

    def spool(self) -> AbstractAsyncContextManager[Spool]:
        return open_spool(self._folder, 1 << 20)

    async def put(self, spool: Spool, *, media_type: str, **_: Any) -> BlobRef:
        if spool.size >= 100:
            raise PayloadTooLarge("The thread is full.")
        content = await spool.whole()
        ref = BlobRef(blob_id=ids.new(), size=spool.size, sha256=sha256(content).hexdigest(), media_type=media_type)
        self.stored[ref.blob_id] = media_type, content
        return ref


async def test_files_beside_text_are_blobs_that_the_text_mentions_in_their_place(tmp_path: Path) -> None:
    service, allowance = FakeBlobService(tmp_path), InlineAllowance()
    image, other = ToolFile(data=b"\x89PNG", media_type="image/png"), ToolFile(data=b"\0" * 100)
    document = ToolFile(data=b"En taro", media_type="text/plain", uri="shop://greeting")
    results = []
    for _ in range(2):
        async with service.spool() as sink:
            content = CallResult(content=("look:", image, document, other))
            results.append(await store_output(content, sink, cast("BlobService", service), ACTOR, allowance))
    assert results[0] == results[1], "a repeated result is recognised, because equal files are stored once"
    ((blob_id, stored_file),) = service.stored.items()
    assert stored_file == ("image/png", b"\x89PNG")
    first, second, third, last = results[0].output.split("\n")
    assert (first, second, third) == ("look:", f"[image/png, 4 bytes, blob {blob_id}]", "En taro")
    assert last.startswith("[application/octet-stream, 100 bytes, The tool ran, but its output")


async def test_a_single_file_is_the_blob_of_the_result(tmp_path: Path) -> None:
    service = FakeBlobService(tmp_path)
    async with service.spool() as sink:
        result = CallResult(content=(ToolFile(data=b"\x89PNG\0", media_type="image/png"),))
        found = await store_output(result, sink, cast("BlobService", service), ACTOR, InlineAllowance())
    assert found.blob is not None
    assert (found.output, found.blob.media_type, found.summary) == (None, "image/png", "image/png, 5 bytes")


async def test_a_single_document_is_a_text(tmp_path: Path) -> None:
    result = CallResult(content=(ToolFile(data=b"En taro", media_type="text/plain", uri="shop://greeting"),))
    assert (await stored(tmp_path, result)).output == "En taro"


async def test_a_result_stores_a_bounded_number_of_files(tmp_path: Path) -> None:
    service = FakeBlobService(tmp_path)
    files = tuple(ToolFile(data=bytes([0, number])) for number in range(MAX_FILES + 1))
    async with service.spool() as sink:
        result = CallResult(content=files)
        found = await store_output(result, sink, cast("BlobService", service), ACTOR, InlineAllowance())
    assert len(service.stored) == MAX_FILES
    assert found.output.endswith("[application/octet-stream, 2 bytes, left out]")
