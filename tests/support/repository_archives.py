"""Builds archives of repositories, also ones that no honest program writes."""

import gzip
import io
import tarfile
import zipfile
from collections.abc import Iterable, Mapping

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TYPES = {
    "file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "symlink": tarfile.SYMTYPE, "hard_link": tarfile.LNKTYPE,
    "device": tarfile.CHRTYPE, "fifo": tarfile.FIFOTYPE,
}  # fmt: skip
MODES = {"file": 0o100644, "folder": 0o040755, "symlink": 0o120777, "device": 0o020666, "fifo": 0o010666}


def tar_gz(files: Mapping[str, bytes], *, top: str = "repo-main/", commit: str = COMMIT) -> bytes:
    """The archive that `git archive` writes of these files: with a top folder, and the commit as a comment."""
    entries = [(top + name, "file", content) for name, content in files.items()]
    return tar_gz_of(entries, comment=commit)


def tar_gz_of(entries: Iterable[tuple[str, str, bytes]], *, comment: str | None = None) -> bytes:
    """A .tar.gz archive of entries: name, kind and content."""
    content = io.BytesIO()
    pax = {} if comment is None else {"comment": comment}
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT, pax_headers=pax) as archive:
        for name, kind, data in entries:
            info = tarfile.TarInfo(name)
            info.type = TYPES[kind]
            info.linkname = "/etc/passwd" if "link" in kind else ""
            info.size = len(data) if kind == "file" else 0
            archive.addfile(info, io.BytesIO(data))
    return gzip.compress(content.getvalue(), compresslevel=1, mtime=0)


def zip_of(entries: Iterable[tuple[str, str, bytes]], *, comment: str = "") -> bytes:
    """A .zip archive of entries: name, kind and content. Zip has no hard links."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, kind, data in entries:
            info = zipfile.ZipInfo(name)
            info.create_system = 3
            info.external_attr = MODES[kind] << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
        archive.comment = comment.encode()
    return content.getvalue()
