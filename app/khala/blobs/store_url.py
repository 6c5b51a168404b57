"""Opens the blob store that a URL names."""

import re
from pathlib import Path
from urllib.parse import urlsplit

from khala.blobs.filesystem import FilesystemBlobStore
from khala.blobs.port import BlobStore
from khala.blobs.s3 import S3BlobStore

BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
FOLDER = "blobs"


def validated_store_url(url: str) -> str:
    """The URL, if it names a bucket. Raises `ValueError` otherwise."""
    split = urlsplit(url)
    is_plain = not (split.query or split.fragment or split.username or split.port)
    if split.scheme != "s3" or not BUCKET.fullmatch(split.netloc) or not is_plain:
        # The message does not repeat the URL, which may contain a secret.
        raise ValueError("must be like s3://bucket or s3://bucket/prefix; set credentials as AWS_* variables")
    return url


def open_store(url: str | None, home: Path) -> BlobStore:
    """The bucket at this URL, or a folder in `home` if there is no URL. Creates nothing before the first use."""
    if url is None:
        return FilesystemBlobStore(home / FOLDER)
    split = urlsplit(validated_store_url(url))
    return S3BlobStore(split.netloc, split.path)
