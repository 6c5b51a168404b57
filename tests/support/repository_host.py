"""A server that speaks the archive endpoints of GitHub, GitLab and Gitea, with their refusals and their faults."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from khala.domain.repository_hosts import HostKind, RepositoryHost
from tests.support.repository_archives import tar_gz

FILES = {"README.md": b"# En taro\n", "src/main.py": b"print('Adun')\n", "src/deep/data.bin": b"\0\1\2"}
REFUSALS = {
    "private": ("401 Unauthorized", {}),
    "forbidden": ("403 Forbidden", {}),
    "limited": ("429 Too Many Requests", {"Retry-After": "77"}),
    "limited-later": ("429 Too Many Requests", {}),
    "limited-reset": ("403 Forbidden", {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "{reset}"}),
    "limited-date": ("403 Forbidden", {"Retry-After": "{date}"}),
    "broken": ("500 Internal Server Error", {}),
    "page": ("200 OK", {"Content-Type": "text/html; charset=utf-8"}),
    "login": ("302 Found", {"Location": "/users/sign_in"}),
}
"""Statuses and headers by the name of the repository."""
RESET_SECONDS = 120


class ArchiveServer(msgspec.Struct):
    """Serves `owner/repo` with `FILES`, on `main` and `feature/x`. Other names stand for refusals and faults.

    `archives` replaces the content by the repository's name. `requests` has the targets of all requests.
    """

    port: int = 0
    archives: dict[str, bytes] = {}
    redirects: dict[str, str] = {}
    requests: list[str] = []
    release: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def host(self, kind: HostKind) -> RepositoryHost:
        return RepositoryHost(kind=kind, origin=self.origin)

    def url(self, name: str = "repo", owner: str = "owner") -> str:
        return f"{self.origin}/{owner}/{name}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(head.split(" ")[1])
            await self._answer(head.split(" ")[1], writer)
            await writer.drain()
        writer.close()

    async def _answer(self, target: str, writer: asyncio.StreamWriter) -> None:
        parts = urlsplit(target)
        match unquote(parts.path).strip("/").split("/"):
            case ["users", "sign_in"]:
                respond(writer, "200 OK", b"<html>", Content_Type="text/html")
            case ["codeload", _, name, *ref]:
                await self._archive(name, "/".join(ref), writer)
            case [owner, name, "archive", *ref]:
                await self._github(owner, name, "/".join(ref).removesuffix(".tar.gz"), writer)
            case ["api", "v4", "projects", _, name, "repository", "archive.tar.gz"]:
                await self._archive(name, parse_qs(parts.query).get("sha", ["HEAD"])[0], writer)
            case [_, name, "get", *ref]:
                await self._archive(name, "/".join(ref).removesuffix(".tar.gz"), writer)
            case ["api", "v1", "repos", _, name]:
                self._describe(name, writer)
            case _:
                respond(writer, "404 Not Found")

    async def _github(self, owner: str, name: str, ref: str, writer: asyncio.StreamWriter) -> None:
        """As github.com does: known repositories redirect to another host."""
        if name in REFUSALS or name in self.redirects:
            await self._archive(name, ref, writer)
        else:
            respond(writer, "302 Found", Location=f"http://localhost:{self.port}/codeload/{owner}/{name}/{ref}")

    def _describe(self, name: str, writer: asyncio.StreamWriter) -> None:
        """As Gitea's API does."""
        if name in REFUSALS:
            refuse(writer, name)
        elif name in ("missing", "empty"):
            body = b'{"default_branch": "main", "empty": true}'
            respond(writer, "404 Not Found" if name == "missing" else "200 OK", body)
        else:
            respond(writer, "200 OK", b'{"id": 1, "default_branch": "main", "empty": false}')

    async def _archive(self, name: str, ref: str, writer: asyncio.StreamWriter) -> None:
        content = self.archives.get(name, tar_gz(FILES, top=f"{name}-0123/"))
        if name in self.redirects:
            respond(writer, "302 Found", Location=self.redirects[name])
        elif name in REFUSALS:
            refuse(writer, name)
        elif name == "missing" or ref not in ("HEAD", "main", "feature/x"):
            respond(writer, "404 Not Found")
        elif name == "truncated":
            respond(writer, "200 OK", content[:-20], Content_Length=str(len(content)))
        elif name == "slow":
            respond(writer, "200 OK", content[:10], Content_Length=str(len(content)))
            await writer.drain()
            await self.release.wait()
            writer.write(content[10:])
        else:
            respond(writer, "200 OK", content, Content_Type="application/x-gzip")


def respond(writer: asyncio.StreamWriter, status: str, body: bytes = b"", **headers: str) -> None:
    named = {"Content-Length": str(len(body))} | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in named.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)


def refuse(writer: asyncio.StreamWriter, name: str) -> None:
    status, headers = REFUSALS[name]
    at = time.time() + RESET_SECONDS
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(at))
    filled = {name: value.format(reset=round(at), date=date) for name, value in headers.items()}
    respond(writer, status, b"<html>no</html>" if name == "page" else b"", **filled)


@contextlib.asynccontextmanager
async def archive_server() -> AsyncIterator[ArchiveServer]:
    """Serve on a free port of this machine."""
    made = ArchiveServer()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made
        made.release.set()


@contextlib.contextmanager
def archive_server_in_thread() -> Iterator[ArchiveServer]:
    """The server in a thread with an event loop of its own, for tests that have none."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    serving = archive_server()
    try:
        yield asyncio.run_coroutine_threadsafe(serving.__aenter__(), loop).result(10)
        asyncio.run_coroutine_threadsafe(serving.__aexit__(None, None, None), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
