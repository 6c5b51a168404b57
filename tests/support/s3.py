"""A server with the S3 protocol, as a process on loopback."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import boto3
import httpx

from tests.support.client import NO_TLS
from tests.support.ports import free_port

BUCKET = "khala"
READY_TIMEOUT_SECONDS = 30.0


class S3:
    """The server; it can be stopped and started again."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def env(self) -> dict[str, str]:
        """Environment variables for processes that use it."""
        return {
            "BLOB_URL": f"s3://{BUCKET}/blobs",
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def start(self) -> None:
        """Start it, wait until it responds, and create the bucket."""
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, env=dict(os.environ), stdout=quiet, stderr=quiet)
        deadline = time.monotonic() + READY_TIMEOUT_SECONDS
        while True:
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"{self.url}/moto-api/", timeout=2, verify=NO_TLS)
                break
            assert time.monotonic() < deadline, "the S3 server did not become ready"
            time.sleep(0.05)
        self.client().create_bucket(Bucket=BUCKET)

    def stop(self) -> None:
        """Stop it; its objects are lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def client(self) -> "boto3.client":
        """A client of this server."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )


@contextlib.contextmanager
def serving() -> Iterator[S3]:
    """An S3 server for as long as this is open."""
    server = S3()
    server.start()
    try:
        yield server
    finally:
        server.stop()
