"""Where blobs are kept, as an address says."""

import re
from pathlib import Path
from urllib.parse import urlsplit

from khala.blobs.filesystem import FilesystemBlobStore
from khala.blobs.port import BlobStore
from khala.blobs.s3 import S3BlobStore

BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
FOLDER = "blobs"


def validated_store_url(url: str) -> str:
    """The address, if it is one of a bucket. Raises `ValueError`."""
    split = urlsplit(url)
    plain = not (split.query or split.fragment or split.username or split.port)
    if split.scheme != "s3" or not BUCKET.fullmatch(split.netloc) or not plain:
        # Not repeated here: somebody may have put a secret into it.
        raise ValueError("must be like s3://bucket or s3://bucket/prefix; credentials come by the usual AWS_* names")
    return url


def open_store(url: str | None, home: Path) -> BlobStore:
    """The bucket at this address, or without one the folder in `home`. Nothing is made or called before it is used."""
    if url is None:
        return FilesystemBlobStore(home / FOLDER)
    split = urlsplit(validated_store_url(url))
    return S3BlobStore(split.netloc, split.path)
