"""Downloads archives of repositories through the SSRF guard, and says what a host's refusal means."""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import httpx
import msgspec

from khala.blobs.spool import Spool
from khala.tools.http_client import GuardedClient, GuardedResponse, parse_url
from khala.tools.port import ToolError
from khala.tools.repositories.addresses import RepositoryAddress, check_ref
from khala.tools.repositories.archive_limits import ArchiveLimits
from khala.tools.repositories.archive_reader import archive_too_large
from khala.tools.repositories.errors import RepositoryError

MAX_ANSWER_BYTES = 1 << 20
"""Bytes of a JSON document."""
MAX_RETRY_SECONDS = 86_400
HEADERS = ((b"Accept", b"*/*"), (b"Accept-Encoding", b"identity"))
LOGIN_PATHS = ("/users/sign_in", "/user/login", "/login", "/account/signin", "/account/signin/")
"""Where hosts redirect a request that requires a login."""
PRIVATE = (
    "The repository {name} on {host} is private or requires a login. Khala loads public repositories only; an archive "
    "of it can be uploaded instead."
)


class HostRepository(msgspec.Struct):
    """A repository, as the API of a `gitea` host describes it."""

    default_branch: str = ""
    empty: bool = False


class ArchiveDownloader:
    """Downloads archives. All errors are `RepositoryError`, or those of `httpcore` and of timeouts."""

    def __init__(self, client: GuardedClient, limits: ArchiveLimits) -> None:
        self._client = client
        self._limits = limits

    async def default_branch(self, address: RepositoryAddress) -> str | None:
        """The name of the default branch, on hosts whose archives need it."""
        url = address.default_branch_url
        if url is None:
            return None
        content = bytearray()
        async with self._get(url, address) as response:
            async for chunk in response.body:
                content += chunk
                if len(content) > MAX_ANSWER_BYTES:
                    raise RepositoryError(f"{response.url.host} answered with too much.", code="unavailable")
        try:
            found = msgspec.json.decode(content, type=HostRepository)
        except msgspec.MsgspecError as error:
            raise RepositoryError(f"{address.host.origin} is not a host of this kind.", code="unavailable") from error
        if found.empty or not found.default_branch:
            raise RepositoryError(f"The repository {address.name} is empty.", code="not_found")
        return check_ref(found.default_branch)

    async def download(self, url: str, address: RepositoryAddress, spool: Spool, report: Callable[[int], None]) -> None:
        """Write the archive to the spool. `report` gets the number of bytes so far."""
        max_bytes = self._limits.compressed_bytes
        async with self._get(url, address) as response:
            if response.headers.get("content-type", "").lower().startswith("text/html"):
                raise RepositoryError(
                    f"{response.url.host} answered with a web page, not with an archive.", code="not_an_archive"
                )
            length = response.headers.get("content-length", "")
            if length.isascii() and length.isdigit() and int(length[:20]) > max_bytes:
                raise archive_too_large(self._limits)
            async for chunk in response.body:
                if spool.size + len(chunk) > max_bytes:
                    raise archive_too_large(self._limits)
                await spool.write(chunk)
                report(spool.size)

    @asynccontextmanager
    async def _get(self, url: str, address: RepositoryAddress) -> AsyncIterator[GuardedResponse]:
        try:
            async with self._client.follow(parse_url(url), HEADERS, keep_tls=True) as response:
                _check(response, address)
                yield response
        except RepositoryError:
            raise
        except ToolError as error:
            raise _from_guard(error) from error


def _from_guard(error: ToolError) -> RepositoryError:
    """The error of the SSRF guard or of a redirect as one of a repository."""
    match error.code:
        case "unavailable":
            return RepositoryError(error.message, code="unavailable")
        case "forbidden":
            return RepositoryError(error.message, code="forbidden")
        case _:
            return RepositoryError(f"The host's redirect can't be followed. {error.message}", code="forbidden")


def _check(response: GuardedResponse, address: RepositoryAddress) -> None:
    """Raise `RepositoryError` unless the response has the content."""
    host, status = response.url.host, response.status
    if status == HTTPStatus.OK and not _is_login(response.url):
        return
    wait = retry_seconds(response.headers, time.time())
    if status == HTTPStatus.TOO_MANY_REQUESTS or (status == HTTPStatus.FORBIDDEN and wait is not None):
        when = "later" if wait is None else f"in {wait:,} seconds"
        raise RepositoryError(
            f"{host} limits the rate of requests. Try again {when}.", code="rate_limited", retry_after_seconds=wait
        )
    if status in (HTTPStatus.OK, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise RepositoryError(PRIVATE.format(name=address.name, host=host), code="private")
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        raise RepositoryError(_not_found(address), code="not_found")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise RepositoryError(
            f"{host} answered {status}. Try again later.", code="unavailable", retry_after_seconds=wait
        )
    raise RepositoryError(f"{host} answered {status} instead of an archive.")


def _not_found(address: RepositoryAddress) -> str:
    host = httpx.URL(address.host.origin).host
    if address.ref is None:
        return f"{host} has no repository {address.name}, or it is private."
    return (
        f"{host} has no repository {address.name} with the branch, tag or commit {address.ref}, or it is private. "
        "If the name of the branch has a slash, give it as ref."
    )


def _is_login(url: httpx.URL) -> bool:
    return url.path in LOGIN_PATHS


def retry_seconds(headers: Mapping[str, str], now: float) -> int | None:
    """The seconds until the host accepts requests again, if it says so. `now` is seconds since 1970."""
    after = headers.get("retry-after", "").strip()
    if after.isascii() and after.isdigit():
        return _bounded(int(after[:9]))
    if after:
        try:
            return _bounded(parsedate_to_datetime(after).timestamp() - now)
        except (ValueError, OverflowError):
            return _bounded(0)
    remaining = headers.get("x-ratelimit-remaining", headers.get("ratelimit-remaining", "")).strip()
    reset = headers.get("x-ratelimit-reset", headers.get("ratelimit-reset", "")).strip()
    if remaining != "0":
        return None
    return _bounded(int(reset[:12]) - now) if reset.isascii() and reset.isdigit() else _bounded(0)


def _bounded(seconds: float) -> int:
    return max(1, min(MAX_RETRY_SECONDS, round(seconds)))
