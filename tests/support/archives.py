"""Reads and writes archives of accounts."""

import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from khala.domain.archive_format import MANIFEST


def files_of(archive: bytes) -> dict[str, bytes]:
    """The files of an archive; checks their checksums."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        assert opened.testzip() is None
        return {name: opened.read(name) for name in opened.namelist()}


def lines_of(archive: bytes, name: str) -> list[dict[str, Any]]:
    """The data of the lines of one file, such as `messages`."""
    return [msgspec.json.decode(line)["data"] for line in files_of(archive)[f"{name}.jsonl"].splitlines()]


def manifest_of(archive: bytes) -> dict[str, Any]:
    """The manifest of an archive."""
    return dict(msgspec.json.decode(files_of(archive)[MANIFEST]))


def packed(files: Mapping[str, bytes], path: Path, *, honest: bool = True) -> Path:
    """Write an archive of these files. With `honest`, its manifest is updated to match them."""
    files = dict(files)
    if honest and MANIFEST in files:
        files[MANIFEST] = _updated_manifest(files)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in files.items():
            made.writestr(name, content)
    return path


def _updated_manifest(files: Mapping[str, bytes]) -> bytes:
    manifest = msgspec.json.decode(files[MANIFEST])
    for entry in manifest["files"]:
        content = files.get(entry["name"], b"")
        entry |= {
            "lines": content.count(b"\n"),
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
    blobs = [content for name, content in files.items() if name.startswith("blobs/")]
    manifest |= {"blobs": len(blobs), "blobBytes": sum(map(len, blobs))}
    return msgspec.json.encode(manifest)
