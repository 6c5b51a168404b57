"""Lines of blobs: split, searched and shown alike, whatever the chunk boundaries."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import cast
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from khala.blobs import blob_reader, line_splitter
from khala.blobs.blob_reader import ReadRequest, ReadResult
from khala.blobs.blob_service import BlobService
from khala.blobs.line_views import ReadLimits
from khala.blobs.patterns import compile_pattern
from khala.domain.errors import InvalidInput, Unavailable
from khala.store.blobs.blobs import Blob

ROOMY = ReadLimits(seconds=60)
SLOW = "(((x|y| ){1,9}){1,9}){1,9}z"


class MemoryBlobService:
    """A blob service with one blob, whose chunks have this size."""

    def __init__(self, data: bytes, chunk: int = 64 * 1024) -> None:
        self.data, self.chunk = data, chunk
        self.read_bytes = 0

    @asynccontextmanager
    async def read(self, blob: Blob, start: int = 0, end: int | None = None) -> AsyncIterator[AsyncIterator[bytes]]:
        async def chunks() -> AsyncIterator[bytes]:
            until = len(self.data) if end is None else min(end, len(self.data))
            for at in range(start, until, self.chunk):
                piece = self.data[at : min(at + self.chunk, until)]
                self.read_bytes += len(piece)
                yield piece

        yield chunks()


def blob(data: bytes) -> Blob:
    nobody = UUID(int=0)
    return Blob(
        id=nobody, thread_id=nobody, run_id=None, sha256=b"", size=len(data), media_type="text/plain", name=None,
        preview="", author_id=None, attached=True, created_at=datetime.now(UTC), expires_at=None,
    )  # fmt: skip


async def read_lines(
    data: bytes, question: ReadRequest, bounds: ReadLimits = ROOMY, chunk: int = 64 * 1024
) -> ReadResult:
    return await blob_reader.read_lines(
        cast("BlobService", MemoryBlobService(data, chunk)), blob(data), question, bounds
    )


async def pages(
    data: bytes, question: ReadRequest, bounds: ReadLimits = ROOMY, chunk: int = 64 * 1024
) -> list[ReadResult]:
    found = [await read_lines(data, question, bounds, chunk)]
    while found[-1].next is not None:
        assert len(found) < 10_000
        again = ReadRequest(**{name: getattr(question, name) for name in question.__struct_fields__ if name != "after"},
                         after=found[-1].next)  # fmt: skip
        found.append(await read_lines(data, again, bounds, chunk))
    return found


def simple_split(data: bytes) -> list[str]:
    """The lines, by a simple implementation."""
    found = data.split(b"\n")
    ended = [line.removesuffix(b"\r") for line in found[:-1]] + ([found[-1]] if found[-1] else [])
    return [line.decode(errors="replace") for line in ended]


def simple_grep(data: bytes, pattern: str, context: int) -> list[tuple[int, str, bool]]:
    """The matching lines and their context, by a simple implementation."""
    all_lines = simple_split(data)
    hits = {at for at, line in enumerate(all_lines) if re.search(pattern, line)}
    near = {at + by for at in hits for by in range(-context, context + 1) if 0 <= at + by < len(all_lines)}
    return [(at + 1, all_lines[at], at in hits) for at in sorted(near)]


texts = st.lists(st.text("abé\r", max_size=6), max_size=40).flatmap(
    lambda rows: st.sampled_from(["\n".join(rows), "\n".join(rows) + "\n", "\r\n".join(rows)])
)


@given(texts, st.sampled_from(["a", "b+a", "^a", "a$", "^$", "é", "[^a]b", "(a|b)(a|b)"]), st.integers(0, 3),
       st.integers(1, 5), st.integers(1, 9))  # fmt: skip
@settings(max_examples=300)
def test_a_paged_search_finds_the_lines_of_a_simple_one(
    text: str, pattern: str, context: int, most: int, chunk: int
) -> None:
    data = text.encode()
    question = ReadRequest(mode="grep", pattern=pattern, context=context, lines=most)
    for bounds in (ROOMY, ReadLimits(seconds=0), ReadLimits(text=3, seconds=60)):
        found = asyncio.run(pages(data, question, bounds, chunk))
        got = [(line.line, line.text, line.match) for page in found for line in page.items]
        assert got == simple_grep(data, pattern, context)


@given(texts, st.integers(1, 7), st.integers(1, 9))
@settings(max_examples=200)
def test_head_range_and_tail_show_the_lines_of_a_simple_split(text: str, many: int, chunk: int) -> None:
    data = text.encode()
    expected = list(enumerate(simple_split(data), 1))
    found = asyncio.run(pages(data, ReadRequest(mode="head", lines=many), chunk=chunk))
    assert [(line.line, line.text) for page in found for line in page.items] == expected
    part = asyncio.run(read_lines(data, ReadRequest(mode="range", start=3, lines=many), chunk=chunk))
    assert [(line.line, line.text) for line in part.items] == expected[2 : 2 + many]
    last = asyncio.run(read_lines(data, ReadRequest(mode="tail", lines=many), chunk=chunk))
    assert [line.text for line in last.items] == [line for _, line in expected[-many:]]
    assert [line.line for line in last.items] == list(range(-len(last.items), 0))


@given(st.lists(st.integers(0, 40), max_size=8), st.integers(1, 30))
@settings(max_examples=200)
def test_very_long_lines_are_found_in_pieces_each_line_once(lengths: list[int], chunk: int) -> None:
    data = b"\n".join(b"x" * length + b"hit" + b"y" * length for length in lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_splitter, "PIECE_BYTES", 16)
        patch.setattr(line_splitter, "OVERLAP_BYTES", 4)
        for bounds in (ROOMY, ReadLimits(seconds=0)):
            found = asyncio.run(pages(data, ReadRequest(mode="grep", pattern="hit", lines=3), bounds, chunk))
            hits = [line.line for page in found for line in page.items]
            assert hits == list(range(1, len(lengths) + 1))
            none = asyncio.run(pages(data, ReadRequest(mode="grep", pattern="^y|x$|^hit.*zz"), bounds, chunk))
            assert not [line for page in none for line in page.items]


async def test_the_tail_is_read_backwards_across_chunk_boundaries() -> None:
    data = b"".join(b"line %d\r\n" % number for number in range(1, 200_001))
    memory = MemoryBlobService(data)
    last = await blob_reader.read_lines(
        cast("BlobService", memory), blob(data), ReadRequest(mode="tail", lines=1000), ROOMY
    )
    assert [line.text for line in last.items] == [f"line {number}" for number in range(199_001, 200_001)]
    assert memory.read_bytes < 300_000
    whole = await read_lines(b"one\ntwo", ReadRequest(mode="tail", lines=5))
    assert [(line.line, line.text) for line in whole.items] == [(-2, "one"), (-1, "two")]


async def test_a_very_long_line_is_truncated_with_a_mark_and_shown_around_the_match() -> None:
    data = b"a" * 3_000_000 + b"needle" + b"b" * 3_000_000 + b"\nshort\n"
    head = (await read_lines(data, ReadRequest(lines=2))).items
    assert (head[0].text, head[0].cut, head[1].text, head[1].cut) == ("a" * 2000 + "…", True, "short", False)
    (hit,) = (await read_lines(data, ReadRequest(mode="grep", pattern="needle"))).items
    assert hit.line == 1
    assert hit.cut
    assert "aneedleb" in hit.text
    assert len(hit.text) < 2100
    tail = (await read_lines(data, ReadRequest(mode="tail", lines=2))).items
    assert (tail[1].text, tail[0].cut, tail[0].text[0]) == ("short", True, "…")


async def test_a_page_is_bounded_and_the_next_one_continues_after_it() -> None:
    data = b"".join(b"%05d %s\n" % (number, b"z" * 90) for number in range(5000))
    small = ReadLimits(text=4000, seconds=60)
    found = await pages(data, ReadRequest(lines=1000), small)
    assert max(sum(len(line.text) for line in page.items) for page in found) < 4100
    assert [line.line for page in found for line in page.items] == list(range(1, 5001))


async def test_a_timeout_returns_a_cursor_and_each_page_advances() -> None:
    data = b"nothing here\n" * 100_000 + b"needle\n"
    found = await pages(data, ReadRequest(mode="grep", pattern="needle", context=2), ReadLimits(seconds=0))
    assert len(found) > 5
    assert [(line.line, line.match) for page in found for line in page.items] == [
        (99_999, False), (100_000, False), (100_001, True),
    ]  # fmt: skip


async def test_binary_content_is_reported_as_such() -> None:
    seen = await read_lines(b"\x89PNG\r\n\x1a\n\0\0", ReadRequest())
    assert seen == ReadResult(items=[], binary=True)
    assert (await read_lines(b"", ReadRequest())) == ReadResult(items=[])


@pytest.mark.parametrize("pattern", ["(", "(?=x)x", "", "x" * 1001, r"(a)\1", "a{1001}", SLOW, r"\pL{1,1000}"])
async def test_an_unusable_pattern_is_reported(pattern: str) -> None:
    with pytest.raises(InvalidInput):
        await read_lines(b"x", ReadRequest(mode="grep", pattern=pattern))


@pytest.mark.parametrize("after", ["1", "x.y", "1.2.3.4", "-1.0.0.0", "٣.0.0.0", "1.٣.0.0"])
async def test_a_made_up_cursor_is_refused(after: str) -> None:
    with pytest.raises(InvalidInput):
        await read_lines(b"x", ReadRequest(after=after))


class StuckPattern:
    """A pattern whose search takes until the test lets it go on."""

    programsize = 1

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun = threading.Event()
        self.searched = 0
        self.largest = 0

    def search(self, text: bytes | str) -> None:
        self.searched += 1
        self.largest = max(self.largest, len(text))
        self.begun.set()
        assert self.go_on.wait(30)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[StuckPattern]:
    pattern = StuckPattern()
    monkeypatch.setattr(blob_reader, "compile_pattern", lambda *_, **__: pattern)
    yield pattern
    pattern.go_on.set()


async def test_the_loop_and_its_other_threads_continue_while_searches_are_slow(stuck: StuckPattern) -> None:
    slow = [asyncio.create_task(read_lines(b"xy " * 1000, ReadRequest(mode="grep", pattern="x"))) for _ in range(40)]
    async with asyncio.timeout(20):
        assert await asyncio.to_thread(stuck.begun.wait, 10)
        assert (await read_lines(b"one\n", ReadRequest())).items[0].text == "one"
    assert stuck.searched <= blob_reader.SEARCH_THREADS
    assert not any(task.done() for task in slow)
    stuck.go_on.set()
    assert [found.items for found in await asyncio.gather(*slow)] == [[]] * 40


async def test_a_cancelled_search_ends_after_its_current_piece(stuck: StuckPattern) -> None:
    task = asyncio.create_task(read_lines(b"xy\n" * 10_000, ReadRequest(mode="grep", pattern="x")))
    assert await asyncio.to_thread(stuck.begun.wait, 10)
    task.cancel()
    await asyncio.wait({task})
    stuck.go_on.set()
    await asyncio.wait_for(blob_reader._threads.run(len, ""), 10)
    assert task.cancelled()
    assert stuck.searched <= 2


async def test_a_search_that_gets_no_thread_in_time_is_reported(
    stuck: StuckPattern, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_reader, "THREAD_WAIT_SECONDS", 0.05)
    tasks = [read_lines(b"x", ReadRequest(mode="grep", pattern="x"), ReadLimits(seconds=0)) for _ in range(4)]
    refused = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in refused] == [Unavailable] * 4


async def test_a_search_reads_64_kib_at_once_and_checks_the_time_between(stuck: StuckPattern) -> None:
    stuck.go_on.set()
    data = b"xy " * 200_000
    seen = await read_lines(data, ReadRequest(mode="grep", pattern="x"), ReadLimits(seconds=0))
    assert seen.next is not None
    assert stuck.searched == 1
    found = await pages(data, ReadRequest(mode="grep", pattern="x"), ReadLimits(seconds=0))
    assert len(found) > 5
    assert stuck.largest <= 64 * 1024 + line_splitter.OVERLAP_BYTES + 2


def test_a_pattern_takes_linear_time() -> None:
    assert compile_pattern("(a+)+$").search(b"a" * 200_000 + b"b") is None
    assert compile_pattern("gr(ü|x).e", ignore_case=True).search("GRÜßE".encode()) is not None
