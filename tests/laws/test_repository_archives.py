"""Reading an archive: whatever it has, every path is below the target folder, and every limit holds."""

import gzip
import io
import struct
import tempfile
import tracemalloc
import zipfile
import zlib
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from khala.tools import paths
from khala.tools.repositories.archive_limits import ArchiveBudget, ArchiveLimits, ReadCancelled
from khala.tools.repositories.archive_reader import ArchiveTarget, ReadArchive, read_archive
from khala.tools.repositories.errors import RepositoryError
from tests.support.repository_archives import COMMIT, tar_gz, tar_gz_of, zip_of

SMALL = ArchiveLimits(
    files=8, total_bytes=2000, file_bytes=500, compressed_bytes=100_000, expanded_bytes=200_000, entries=60
)
WIDE = ArchiveLimits(files=10_000, total_bytes=50 << 20)
IN = ArchiveTarget(folder="in")
SEGMENTS = st.sampled_from(
    [
        "a",
        "b.py",
        "..",
        ".",
        "",
        ".git",
        ".GIT",
        "é",
        "e\u0301",
        "x" * 90,
        "C:",
        "a\\b",
        "~",
        "__MACOSX",
        ".DS_Store",
        "-",
        "\x01",
    ]
)
NAMES = st.lists(SEGMENTS, min_size=1, max_size=20).map("/".join) | st.text(st.characters(codec="utf-8"), min_size=1)
CONTENTS = st.binary(max_size=700) | st.text(max_size=700).map(lambda text: text.encode("utf-8", "replace"))
ENTRIES = st.lists(
    st.tuples(NAMES, st.sampled_from(["file", "file", "file", "folder", "symlink", "device", "fifo"]), CONTENTS),
    max_size=14,
)
TARGETS = st.builds(
    ArchiveTarget,
    folder=st.sampled_from(["in", "in/deep"]),
    top_folders=st.sampled_from([None, 0, 1]),
    only=st.sampled_from(["", "a", "a/b.py"]),
)


def read(data: bytes, target: ArchiveTarget | None = None, limits: ArchiveLimits = WIDE) -> ReadArchive:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        budget = ArchiveBudget(limits, len(data))
        return read_archive(file, target or IN, budget)


def read_or_refuse(data: bytes, target: ArchiveTarget = IN) -> ReadArchive | None:
    """What is read within small limits; None for an archive that is refused."""
    try:
        return read(data, target, SMALL)
    except RepositoryError as error:
        refusal = error.code
    assert refusal in ("not_an_archive", "too_large", "not_found")
    return None


def check_bounds(found: ReadArchive, target: ArchiveTarget, limits: ArchiveLimits) -> None:
    assert 0 < len(found.files) <= limits.files
    assert sum(map(len, found.files.values())) <= limits.total_bytes
    for path, content in found.files.items():
        assert path.startswith(f"{target.folder}/")
        assert paths.normalize(path, new=True) == path
        assert ".git" not in path.lower().split("/")
        assert len(content) <= limits.file_bytes
        assert b"\0" not in content
        content.decode()
        assert not any(other.startswith(f"{path}/") for other in found.files)


@given(entries=ENTRIES, target=TARGETS, is_zip=st.booleans())
@example(entries=[("top/../../x", "file", b"x")], target=ArchiveTarget(folder="in"), is_zip=False)
@settings(max_examples=300, deadline=None)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_whatever_an_archive_has_all_bounds_hold(
    entries: list[tuple[str, str, bytes]], target: ArchiveTarget, *, is_zip: bool
) -> None:
    found = read_or_refuse(zip_of(entries) if is_zip else tar_gz_of(entries), target)
    if found is not None:
        check_bounds(found, target, SMALL)
        assert len(found.files) + sum(skipped.count for skipped in found.skipped) <= len(entries)


@given(data=st.data(), is_zip=st.booleans())
@settings(max_examples=300, deadline=None)
def test_damaged_and_cut_archives_are_errors_or_within_bounds(data: st.DataObject, *, is_zip: bool) -> None:
    entries = [(f"top/{name}", "file", name.encode() * 9) for name in ("a", "b/c", "d" * 120)]
    whole = bytearray((zip_of if is_zip else tar_gz_of)(entries))
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    found = read_or_refuse(cut)
    if found is not None:
        check_bounds(found, IN, SMALL)


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_headers_of_tar_archives_are_errors_or_within_bounds(data: st.DataObject) -> None:
    tar = bytearray(gzip.decompress(tar_gz({"a": b"1", "d" * 120: b"2"})))
    for _ in range(data.draw(st.integers(1, 6))):
        tar[data.draw(st.integers(0, len(tar) - 1))] = data.draw(st.integers(0, 255))
    for block in range(0, len(tar), 512):  # With right checksums, so that damage gets past them.
        tar[block + 148 : block + 156] = b" " * 8
        tar[block + 148 : block + 156] = b"%06o\0 " % sum(tar[block : block + 512])
    found = read_or_refuse(gzip.compress(bytes(tar)))
    if found is not None:
        check_bounds(found, IN, SMALL)


GOOD = [
    ("top/a.txt", "file", b"one\n"), ("top/folder", "folder", b""), ("top/folder/b.md", "file", "zwei \u00e9".encode()),
    ("top/" + "long/" * 14 + "x" * 80, "file", b"long"), ("top/empty", "file", b""),
]  # fmt: skip


def test_zip_and_tar_give_the_same_files_and_the_commit() -> None:
    expected = {
        "in/a.txt": b"one\n", "in/folder/b.md": "zwei \u00e9".encode(), "in/empty": b"",
        "in/" + "long/" * 14 + "x" * 80: b"long",
    }  # fmt: skip
    by_tar, by_zip = read(tar_gz_of(GOOD, comment=COMMIT)), read(zip_of(GOOD, comment=COMMIT))
    assert by_tar.files == by_zip.files == expected
    assert (by_tar.commit, by_zip.commit, by_tar.skipped, by_zip.skipped) == (COMMIT, COMMIT, (), ())
    assert read(tar_gz_of(GOOD, comment="not a commit")).commit is None


def test_everything_that_is_not_loaded_is_reported_with_its_reason() -> None:
    entries = [
        ("top/ok.txt", "file", b"ok"),
        ("top/link", "symlink", b""),
        ("top/hard", "hard_link", b""),
        ("top/null", "device", b""),
        ("top/pipe", "fifo", b""),
        ("/etc/cron", "file", b"x"),
        ("top/../../up", "file", b"x"),
        ("C:/windows", "file", b"x"),
        ("top/a\\..\\b", "file", b"x"),
        ("top/.git/config", "file", b"x"),
        ("top/.DS_Store", "file", b"x"),
        ("top/ok.txt", "file", b"again"),
        ("top/ok.txt/below", "file", b"x"),
        ("top/large.txt", "file", b"x" * ((1 << 20) + 1)),
        ("top/image.png", "file", b"\x89PNG\0"),
        ("top/latin1.txt", "file", b"caf\xe9"),
        ("top/" + "deep/" * 20 + "x", "file", b"x"),
        ("top/\udcff", "file", b"x"),
    ]
    found = read(tar_gz_of(entries))
    assert found.files == {"in/ok.txt": b"ok"}
    assert {skipped.reason: skipped.count for skipped in found.skipped} == {
        "symlink": 1, "hard_link": 1, "device": 2, "unsafe_path": 4, "git_data": 1, "system_file": 1,
        "duplicate_path": 2, "too_large": 1, "binary": 2, "path_too_long": 1, "path_not_utf8": 1,
    }  # fmt: skip
    assert found.skipped[0].examples == ("/etc/cron", "top/../../up", "C:/windows", "top/a\ufffd..\ufffdb")


def test_only_a_folder_or_file_is_loaded_if_it_is_named() -> None:
    files = {"src/a": b"1", "src/b/c": b"2", "srcs": b"3", "z": b"4"}
    assert set(read(tar_gz(files), ArchiveTarget(folder="in", only="src")).files) == {"in/src/a", "in/src/b/c"}
    assert set(read(tar_gz(files), ArchiveTarget(folder="in", only="z")).files) == {"in/z"}
    with pytest.raises(RepositoryError, match="no text files below none") as raised:
        read(tar_gz(files), ArchiveTarget(folder="in", only="none"))
    assert raised.value.code == "not_found"


def test_the_top_folder_of_an_upload_is_left_out_only_if_it_is_the_only_one() -> None:
    target = ArchiveTarget(folder="in", top_folders=None)
    one = [("top/a", "file", b"1"), ("top/b/c", "file", b"2")]
    assert set(read(zip_of(one), target).files) == {"in/a", "in/b/c"}
    assert set(read(zip_of([*one, ("other/d", "file", b"3")]), target).files) == {
        "in/top/a",
        "in/top/b/c",
        "in/other/d",
    }
    assert set(read(zip_of([*one, ("d", "file", b"3")]), target).files) == {"in/top/a", "in/top/b/c", "in/d"}


def zeros(size: int) -> bytes:
    """So many zeros, compressed by gzip about a thousandfold."""
    packer = zlib.compressobj(9, wbits=31)
    pieces = [packer.compress(bytes(min(1 << 20, size - start))) for start in range(0, size, 1 << 20)]
    return b"".join([*pieces, packer.flush()])


def tar_bomb(size: int) -> bytes:
    header = bytearray(512)
    header[:5], header[100:108], header[124:136] = b"top/a", b"0000644\0", b"%011o\0" % size
    header[156:157], header[257:265] = b"0", b"ustar\x0000"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return gzip.compress(bytes(header)) + zeros(size)


def zip_bomb(size: int) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("top/a", "w") as file:
        for _ in range(0, size, 1 << 20):
            file.write(bytes(1 << 20))
    return content.getvalue()


@pytest.mark.parametrize("bomb", [tar_bomb, zip_bomb])
def test_a_bomb_is_an_error_and_is_never_in_memory(bomb: Any) -> None:
    data = bomb(200 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(RepositoryError, match="expands to more than") as raised:
            read(data)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert raised.value.code == "too_large"


@pytest.mark.parametrize("build", [tar_gz_of, zip_of])
def test_an_archive_of_200_000_files_is_an_error_in_little_memory(build: Any) -> None:
    data = build((f"top/{number}", "file", b"") for number in range(200_000))
    tracemalloc.start()
    try:
        with pytest.raises(RepositoryError, match="more than 50,000 files and folders") as raised:
            read(data, limits=ArchiveLimits(files=60_000, total_bytes=1 << 20))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert raised.value.code == "too_large"


def test_a_directory_of_tiny_zip_entries_is_refused_before_it_is_parsed() -> None:
    entry = b"PK\x01\x02" + bytes(24) + struct.pack("<HHH", 1, 0, 0) + bytes(12) + b"a"
    directory = entry * 60_000
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 60_000 & 0xFFFF, 60_000 & 0xFFFF, len(directory), 4, 0)
    with pytest.raises(RepositoryError, match="more than 50,000") as raised:
        read(b"PK\x03\x04" + directory + end)
    assert raised.value.code == "too_large"


@pytest.mark.parametrize("build", [tar_gz_of, zip_of])
def test_more_than_the_workspace_takes_is_an_error_that_says_what_to_do(build: Any) -> None:
    entries = [(f"top/{number}", "file", b"x" * 100) for number in range(9)]
    for limits in (SMALL, ArchiveLimits(files=100, total_bytes=899)):
        with pytest.raises(RepositoryError, match=r"Load a folder of the repository \(path\)") as raised:
            read(build(entries), limits=limits)
        assert raised.value.code == "too_large"


def test_headers_and_archives_that_are_too_large_are_refused() -> None:
    with pytest.raises(RepositoryError, match="larger than"):
        read(bytes(200_000), limits=SMALL)
    with pytest.raises(RepositoryError, match="a header is too large"):
        read(tar_gz_of([("top/" + "x" * 100_000, "file", b"")]))


@pytest.mark.parametrize(
    "data",
    [b"", b"PK", b"<html>", b"\x1f\x8b", gzip.compress(b"no tar" * 200, mtime=0), b"PK\x03\x04" * 90],
    ids=["nothing", "beginning of ZIP", "HTML", "beginning of gzip", "gzip of no tar", "damaged ZIP"],
)
def test_other_content_is_not_an_archive(data: bytes) -> None:
    with pytest.raises(RepositoryError) as raised:
        read(data)
    assert raised.value.code == "not_an_archive"


def test_encrypted_files_and_compressions_that_need_much_memory_are_skipped() -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("top/a", b"a")
        archive.writestr("top/lzma", b"b" * 100, zipfile.ZIP_LZMA)
        archive.writestr("top/secret", b"c")
    data = bytearray(content.getvalue())
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    found = read(bytes(data))
    assert found.files == {"in/a": b"a"}
    assert {skipped.reason for skipped in found.skipped} == {"unsupported", "encrypted"}


def test_a_cancelled_reading_ends() -> None:
    data = tar_gz({"a": b"x"})
    with tempfile.TemporaryFile() as file:
        file.write(data)
        budget = ArchiveBudget(WIDE, len(data))
        budget.cancelled.set()
        with pytest.raises(ReadCancelled):
            read_archive(file, IN, budget)
