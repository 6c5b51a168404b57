"""A blob store in a bucket of S3, or of a compatible service, through boto3 in a few threads."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import structlog

from khala.blobs.thread_pool import ThreadPool
from khala.domain.errors import BlobNotFound, KhalaError, Unavailable

log = structlog.get_logger()

CHUNK_BYTES = 64 * 1024
THREADS = 16
"""Concurrent calls. A read occupies a thread only while it waits for the next chunk."""
MULTIPART_THRESHOLD_BYTES = 16 << 20
"""The size from which a file is uploaded in several parts."""
MULTIPART_PART_BYTES = 8 << 20
CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS = 5, 20
"""Timeouts of one try for the connection, and for the next bytes."""
MAX_TRIES = 3
MISSING_CODES = ("NoSuchKey", "404", "NotFound")
OWNER, CHECK = "khala-owner", "khala-check"
"""Keys beside those of blobs: the owner's name, and the object that a check writes."""

P = ParamSpec("P")
T = TypeVar("T")


class S3BlobStore:
    """Stores objects as `prefix/abcd…` in a bucket. boto3 finds the region, credentials and endpoint."""

    local = False

    def __init__(self, bucket: str, prefix: str = "", *, connect_timeout: float = CONNECT_TIMEOUT_SECONDS) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._connect_timeout = connect_timeout
        self._threads = ThreadPool(THREADS, "s3")
        self._client_lock = threading.Lock()

    async def put(self, key: str, source: Path) -> None:
        """Upload the file, a large one in parts. A failed multipart upload is aborted."""
        await self._run(self._put, key, source)

    @asynccontextmanager
    async def read(self, key: str, start: int, end: int) -> AsyncIterator[AsyncIterator[bytes]]:
        """The object's bytes. Closing this early closes the connection."""
        opening = self._threads.begin(self._open, key, start, end)
        reading: list[Future[bytes]] = []
        try:
            with _storage_errors():
                body = await asyncio.wrap_future(opening)
            yield self._chunks(body, end - start, reading)
        finally:
            _close_when_idle(opening, reading)

    async def delete(self, key: str) -> None:
        """Delete the object."""
        await self._run(lambda: self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key))

    async def signed_url(self, key: str, *, media_type: str, disposition: str, seconds: int) -> str | None:
        """A URL that serves the object with this `Content-Type` and `Content-Disposition`."""
        params = {
            "Bucket": self._bucket,
            "Key": self._prefix + key,
            "ResponseContentType": media_type,
            "ResponseContentDisposition": disposition,
            "ResponseCacheControl": f"private, max-age={seconds}",
        }
        url: str = await self._run(
            lambda: self._client.generate_presigned_url("get_object", Params=params, ExpiresIn=seconds)
        )
        return url

    async def list_older(self, seconds: float) -> AsyncIterator[tuple[str, int]]:
        """Objects that were written at least so many seconds ago, with their sizes."""
        before = datetime.now(UTC) - timedelta(seconds=seconds)
        token: str | None = None
        while True:
            page = await self._run(self._page, token)
            for entry in page.get("Contents", []):
                if entry["LastModified"] < before:
                    yield entry["Key"].removeprefix(self._prefix), entry["Size"]
            token = page.get("NextContinuationToken")
            if token is None:
                return

    async def register_owner(self, name: str) -> str:
        """Make `name` the owner of this bucket and prefix unless there is an owner. Returns the owner."""
        return await self._run(self._register_owner, name)

    async def check(self) -> None:
        """Write a small object and read it."""
        await self._run(self._check)

    async def aclose(self) -> None:
        """Shut down the threads and connections."""
        await self._threads.close()
        if "_created_client" in self.__dict__:
            self._client.close()

    async def _run(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        with _storage_errors():
            return await self._threads.run(call, *args, **named)

    @property
    def _client(self) -> Any:
        with self._client_lock:
            return self._created_client

    @cached_property
    def _created_client(self) -> Any:
        # Importing boto3 takes almost a second, so it is imported only for a bucket, and in a thread.
        import boto3
        from botocore.config import Config

        session = boto3.session.Session()
        config = Config(
            connect_timeout=self._connect_timeout,
            read_timeout=READ_TIMEOUT_SECONDS,
            retries={"mode": "standard", "total_max_attempts": MAX_TRIES},
            max_pool_connections=THREADS,
            signature_version="s3v4",
            # Not all compatible services support the newer checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        return session.client("s3", region_name=session.region_name or "us-east-1", config=config)

    def _put(self, key: str, source: Path) -> None:
        from boto3.s3.transfer import TransferConfig

        # One part after the other, streamed from the file.
        config = TransferConfig(
            multipart_threshold=MULTIPART_THRESHOLD_BYTES, multipart_chunksize=MULTIPART_PART_BYTES, use_threads=False
        )
        self._client.upload_file(str(source), self._bucket, self._prefix + key, Config=config)

    def _open(self, key: str, start: int, end: int) -> Any:
        if start >= end:
            return None
        byte_range = f"bytes={start}-{end - 1}"
        return self._client.get_object(Bucket=self._bucket, Key=self._prefix + key, Range=byte_range)["Body"]

    async def _chunks(self, body: Any, left: int, reading: "list[Future[bytes]]") -> AsyncIterator[bytes]:
        while left > 0:
            reading[:] = [self._threads.begin(body.read, min(CHUNK_BYTES, left))]
            with _storage_errors():
                chunk = await asyncio.wrap_future(reading[0])
            if not chunk:
                raise Unavailable("The bytes of this blob are incomplete.")
            left -= len(chunk)
            yield chunk

    def _page(self, token: str | None) -> dict[str, Any]:
        continuation = {} if token is None else {"ContinuationToken": token}
        page: dict[str, Any] = self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, **continuation)
        return page

    def _register_owner(self, name: str) -> str:
        from botocore.exceptions import ClientError

        location = {"Bucket": self._bucket, "Key": self._prefix + OWNER}
        try:
            content: bytes = self._client.get_object(**location)["Body"].read()
        except ClientError as error:
            if not isinstance(_storage_error(error), BlobNotFound):
                raise
            self._client.put_object(**location, Body=name.encode())
            return name
        return content.decode()

    def _check(self) -> None:
        key = self._prefix + CHECK
        self._client.put_object(Bucket=self._bucket, Key=key, Body=b"khala")
        self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read()


def _close_when_idle(opening: "Future[Any]", reading: "list[Future[bytes]]") -> None:
    """Close the body when no thread uses it any more: neither opening nor reading can be cancelled."""

    def close(_: object) -> None:
        if not opening.cancelled() and opening.exception() is None and opening.result() is not None:
            opening.result().close()

    (reading[0] if reading else opening).add_done_callback(close)


@contextmanager
def _storage_errors() -> Iterator[None]:
    try:
        yield
    except (KhalaError, asyncio.CancelledError, GeneratorExit):
        raise
    except Exception as error:
        translated = _storage_error(error)
        if translated is None:
            raise
        raise translated from error


def _storage_error(error: Exception) -> KhalaError | None:
    """The error for the caller; None if the bucket did not cause it."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
    from urllib3.exceptions import HTTPError

    if isinstance(error, ClientError) and error.response.get("Error", {}).get("Code") in MISSING_CODES:
        return BlobNotFound("The bytes of this blob are missing.")
    if isinstance(error, Boto3Error | BotoCoreError | ClientError | HTTPClientError | HTTPError | OSError):
        return Unavailable("The blob store is unavailable. Try again in a moment.", retry_after=5)
    return None
