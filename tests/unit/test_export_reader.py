"""An export of another chat application cannot take the memory of the process."""

import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from khala.chat_imports.export_reader import MAX_ENTRIES, ExportReader
from khala.domain.errors import InvalidInput


def test_a_zip_of_more_than_200_000_files_is_refused_before_its_directory_is_parsed(tmp_path: Path) -> None:
    entry = b"PK\x01\x02" + bytes(24) + struct.pack("<HHH", 1, 0, 0) + bytes(12) + b"a"
    directory = entry * (MAX_ENTRIES + 1)
    path = tmp_path / "export.zip"
    path.write_bytes(directory + b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 0, 0, len(directory), 0, 0))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match="more than 200,000 files"):
            ExportReader(path)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_a_large_file_of_a_zip_is_found_by_its_name_whatever_its_path_is(tmp_path: Path) -> None:
    content = b"PK\x01\x02" * (1 << 20)
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("conversations.json", "[]")
        archive.writestr("../../file-one.bin", content)
    reader = ExportReader(path)
    assert reader.file("file-one") == content
    reader.close()
