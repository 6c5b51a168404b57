"""Files over REST: uploads by callers with write access, previews, and reads with the same access rules."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import UUID, uuid4

import httpx
import psutil
import pytest
import pytest_asyncio

from khala.domain.tools import ToolActor
from khala.store.blobs import blobs
from khala.store.postgres.database import Database
from khala.tools.port import CallContext, ToolError
from khala.tools.read_blob import ReadBlob
from tests.support.blobs import blob_service_of
from tests.support.client import Thread
from tests.support.in_process import InProcessServer, khala
from tests.support.s3 import S3, serving
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 100
PDF = b"%PDF-1.7\n\xff\xfe\0"

server = server_fixture(with_executor=False, KHALA_UPLOAD_MB="2")


@pytest_asyncio.fixture(loop_scope="module")
async def thread(server: InProcessServer) -> Thread:
    return await server.thread()


async def upload(thread: Thread, content: Any, media_type: str | None = "text/plain", **more: Any) -> httpx.Response:
    headers = thread.headers | ({"Content-Type": media_type} if media_type else {}) | more.pop("headers", {})
    return await thread.http.post(f"/api/threads/{thread.id}/blobs", content=content, headers=headers, **more)


async def uploaded(thread: Thread, content: bytes, media_type: str = "text/plain", name: str | None = None) -> str:
    answer = await upload(thread, content, media_type, params={"name": name} if name else None)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["blobId"])


async def read(thread: Thread, blob_id: str, way: str = "", **more: Any) -> httpx.Response:
    headers = thread.headers | more.pop("headers", {})
    return await thread.http.get(f"/api/blobs/{blob_id}{way}", headers=headers, **more)


async def in_chunks(content: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(content), 50_000):
        yield content[at : at + 50_000]


@pytest.mark.parametrize(
    ("content", "claimed", "kept", "shown"),
    [
        (PNG, "text/html", "image/png", "inline"),
        (b"\xff\xd8\xff\xe0", "image/png", "image/jpeg", "inline"),
        (b"GIF89a\0", "x/y", "image/gif", "inline"),
        (b"RIFF\1\2\3\4WEBPVP8 \0", "", "image/webp", "inline"),
        (PDF, "application/pdf", "application/pdf", "attachment"),
        (b"plain", "text/plain", "text/plain", "inline"),
        (b"a,b\n1,2\n", "text/csv; charset=latin-1", "text/csv", "attachment"),
        (b"# En taro", "text/markdown", "text/markdown", "attachment"),
        (b'{"a": 1}', "application/json", "application/json", "inline"),
        (b"<script>alert(1)</script>", "text/html", "text/plain", "inline"),
        (b"<svg onload='alert(1)'/>", "image/svg+xml", "text/plain", "inline"),
    ],
)
async def test_the_media_type_of_a_file_follows_its_content_and_it_is_served_as_inert(
    thread: Thread, content: bytes, claimed: str, kept: str, shown: str
) -> None:
    answer = await upload(thread, content, claimed or None, params={"name": "Bericht „1“.txt"})
    assert answer.status_code == 201, answer.text
    ref = answer.json()
    assert (ref["mediaType"], ref["size"], ref["name"]) == (kept, len(content), "Bericht „1“.txt")
    assert ref["sha256"] == hashlib.sha256(content).hexdigest()
    served = await read(thread, ref["blobId"])
    assert (served.status_code, served.content) == (200, content)
    headers = served.headers
    assert headers["content-type"] == (f"{kept}; charset=utf-8" if kept.startswith("text/") else kept)
    assert headers["content-disposition"].startswith(f"{shown}; filename=\"Bericht _1_.txt\"; filename*=UTF-8''Bericht")
    assert headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "private, no-cache"
    assert headers["etag"] == f'"{ref["sha256"]}"'
    assert headers["content-length"] == str(len(content))


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"MZ\x90\0\3", 415), (b"text with \0", 415), (b"\xff\xfeh\0", 415), (b"a" * 70_000 + b"\0", 415),
     (b"end\xc3", 415), (b"", 400), (b"x" * (2 << 20), 201), (b"x" * (2 << 20) + b"x", 413)],
)  # fmt: skip
async def test_an_unsupported_file_is_refused_and_leaves_nothing(
    server: InProcessServer, thread: Thread, content: bytes, status: int
) -> None:
    assert (await upload(thread, content)).status_code == status
    assert (await upload(thread, in_chunks(content))).status_code == status
    database = Database(server.database_url)
    async with database.driver() as driver:
        kept = await driver.fetchval("SELECT count(*) FROM blobs WHERE thread_id = $1", thread.id)
    await database.close()
    assert kept == (2 if status == 201 else 0)


async def test_a_file_over_the_limit_gets_the_same_message_with_and_without_an_announced_length(thread: Thread) -> None:
    content = b"x" * (2 << 20) + b"x"
    announced, chunked = await upload(thread, content), await upload(thread, in_chunks(content))
    assert "content-length" in announced.request.headers
    assert "content-length" not in chunked.request.headers
    for answer in (announced, chunked):
        assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
        assert answer.json()["detail"] == "Files can be up to 2 MB."


@pytest.mark.parametrize("form", ["multipart/form-data; boundary=x", "application/x-www-form-urlencoded"])
async def test_a_multipart_form_is_refused(thread: Thread, form: str) -> None:
    answer = await upload(thread, b"a=b", form)
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("shown", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}])
async def test_another_sites_page_uploads_nothing(thread: Thread, shown: dict[str, str]) -> None:
    answer = await upload(thread, b"hello", headers=shown)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


async def test_other_routes_still_take_json_alone(thread: Thread) -> None:
    path = f"/api/threads/{thread.id}/send"
    answer = await thread.http.post(path, content=b"hello", headers=thread.headers | {"Content-Type": "text/plain"})
    assert answer.status_code == 415


async def test_the_number_of_uploads_that_wait_for_a_message_is_limited(
    thread: Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "MAX_UNATTACHED", 2)
    for number in range(2):
        await uploaded(thread, b"%d" % number)
    answer = await upload(thread, b"3")
    assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
    assert "retry-after" in answer.headers


async def test_a_range_request_returns_exactly_the_range(thread: Thread) -> None:
    data = bytes(range(48, 58)) * 20_000
    blob_id = await uploaded(thread, data)
    satisfiable = [("0-0", 0, 1), ("5-14", 5, 15), ("199990-", 199_990, 200_000), ("-3", 199_997, 200_000),
                   ("100-999999", 100, 200_000), ("-999999", 0, 200_000)]  # fmt: skip
    for requested, start, end in satisfiable:
        answer = await read(thread, blob_id, headers={"Range": f"bytes={requested}"})
        assert (answer.status_code, answer.content) == (206, data[start:end])
        assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/200000"
        assert answer.headers["content-length"] == str(end - start)
    for requested in ("200000-", "-0"):
        answer = await read(thread, blob_id, headers={"Range": f"bytes={requested}"})
        assert (answer.status_code, answer.json()["code"]) == (416, "range_not_satisfiable")
        assert answer.headers["content-range"] == "bytes */200000"
    for ignored in ("0-1,5-6", "9-5", "-", "x"):
        assert (await read(thread, blob_id, headers={"Range": f"bytes={ignored}"})).status_code == 200
    other = {"Range": "bytes=0-1", "If-Range": '"another"'}
    assert (await read(thread, blob_id, headers=other)).status_code == 200


async def test_a_client_with_the_current_etag_gets_not_modified(thread: Thread) -> None:
    blob_id = await uploaded(thread, b"hello")
    tag = (await read(thread, blob_id)).headers["etag"]
    for named in (tag, f'"x", W/{tag}', "*"):
        answer = await read(thread, blob_id, headers={"If-None-Match": named})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    assert (await read(thread, blob_id, headers={"If-None-Match": '"x"'})).status_code == 200
    described = await thread.http.head(f"/api/blobs/{blob_id}", headers=thread.headers)
    assert (described.status_code, described.headers["content-length"], described.content) == (200, "5", b"")


async def test_only_readers_of_its_thread_can_read_a_blob(server: InProcessServer, thread: Thread) -> None:
    blob_id = await uploaded(thread, b"secret")
    sha = hashlib.sha256(b"secret").hexdigest()
    stranger = await server.thread()
    assert (await read(stranger, blob_id)).status_code == 403
    assert (await stranger.http.get(f"/api/blobs/{blob_id}")).status_code == 403
    assert (await read(stranger, blob_id, "/lines")).status_code == 403
    assert (await read(stranger, sha)).status_code == 404
    answer = await read(thread, str(uuid4()))
    assert (answer.status_code, answer.json()["code"]) == (404, "blob_not_found")
    await thread.http.delete(f"/api/threads/{thread.id}", headers=thread.headers)
    assert (await read(thread, blob_id)).status_code == 404


async def test_lines_are_read_over_rest_page_by_page(thread: Thread) -> None:
    blob_id = await uploaded(
        thread, "".join(f"line {number} {'odd' * (number % 2)}\n" for number in range(500)).encode()
    )
    head = (await read(thread, blob_id, "/lines", params={"lines": 2})).json()
    assert head["items"] == [{"line": 1, "text": "line 0 "}, {"line": 2, "text": "line 1 odd"}]
    found: list[int] = []
    params: dict[str, Any] = {"mode": "grep", "pattern": "ODD$", "ignoreCase": True, "lines": 99}
    while True:
        page = (await read(thread, blob_id, "/lines", params=params)).raise_for_status().json()
        found += [line["line"] for line in page["items"] if line["match"]]
        if "next" not in page:
            break
        params["after"] = page["next"]
    assert found == list(range(2, 501, 2))
    tail = (await read(thread, blob_id, "/lines", params={"mode": "tail", "lines": 1})).json()
    assert tail["items"] == [{"line": -1, "text": "line 499 odd"}]
    part = (await read(thread, blob_id, "/lines", params={"mode": "range", "from": 100, "lines": 1})).json()
    assert part["items"][0]["line"] == 100
    binary = await uploaded(thread, PNG)
    assert (await read(thread, binary, "/lines")).json() == {"items": [], "binary": True}
    for wrong in ({"mode": "grep"}, {"mode": "grep", "pattern": "("}, {"after": "x"}, {"mode": "x"}, {"lines": 0}):
        assert (await read(thread, blob_id, "/lines", params=wrong)).status_code == 400


async def test_the_tool_reads_only_blobs_of_its_thread(server: InProcessServer, thread: Thread) -> None:
    database = Database(server.database_url)
    blob_id = await uploaded(thread, b"".join(b"row %d\n" % number for number in range(5000)))
    async with blob_service_of(database) as blob_service:
        await _use(ReadBlob(blob_service), blob_id, UUID(thread.id))
    await database.close()


async def _use(tool: ReadBlob, blob_id: str, thread_id: UUID) -> None:

    def call(thread_id: Any) -> CallContext:
        actor = ToolActor(owner_id=uuid4(), thread_id=thread_id)
        return CallContext(id="c", idempotency_key="k", actor=actor, sink=None)  # type: ignore[arg-type]

    mine = call(thread_id)
    result = await tool.run({"blobId": blob_id, "mode": "grep", "pattern": "row 42$", "context": 1}, mine)
    assert result.output == "42- row 41\n43: row 42\n44- row 43"
    assert result.summary == "1 matching line"
    much = await tool.run({"blobId": blob_id, "mode": "head", "lines": 200}, mine)
    assert len(much.output) < 6000
    for args, who, code in (
        ({"blobId": blob_id, "mode": "head"}, call(uuid4()), "not_found"),
        ({"blobId": blob_id, "mode": "head"}, call(None), "not_found"),
        ({"blobId": "x", "mode": "head"}, mine, "bad_arguments"),
        ({"blobId": blob_id, "mode": "grep", "pattern": "("}, mine, "bad_arguments"),
    ):
        with pytest.raises(ToolError) as failed:
            await tool.run(args, who)
        assert failed.value.code == code


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with serving() as server:
        yield server


async def test_a_bucket_serves_large_blobs_itself_and_its_outage_is_reported(
    database_url: str, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    async with khala(database_url, with_executor=False, **s3.env) as inside:
        thread = await inside.thread()
        large, small = b"x" * 300_000, b"y" * 1000
        large_id, small_id = await uploaded(thread, large, name="large.txt"), await uploaded(thread, small)
        moved = await read(thread, large_id)
        assert (moved.status_code, moved.headers["cache-control"]) == (302, "no-store")
        async with httpx.AsyncClient() as elsewhere:
            answer = await elsewhere.get(moved.headers["location"])
        assert answer.content == large
        assert answer.headers["content-disposition"].startswith('inline; filename="large.txt"')
        assert (await read(thread, large_id, params={"direct": True})).content == large
        assert (await read(thread, small_id)).content == small
        assert (await thread.http.get("/api/health/ready")).json()["blobs"] is True
        s3.stop()
        monkeypatch.setattr("khala.blobs.blob_service.CHECK_VALID_SECONDS", 0.0)
        for answer in (await read(thread, small_id), await upload(thread, b"new")):
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
            assert "retry-after" in answer.headers
        for _ in range(50):
            ready = await thread.http.get("/api/health/ready")
            if ready.json()["blobs"] is False:
                break
            await asyncio.sleep(0.1)
        assert (ready.status_code, ready.json()["blobs"], ready.json()["database"]) == (200, False, True)
        s3.start()
        assert (await read(thread, small_id)).status_code == 404, "the test's bucket loses its objects at a restart"
        again = await uploaded(thread, small)
        assert (await read(thread, again)).content == small


async def test_a_client_that_disconnects_leaves_no_file_open(thread: Thread) -> None:
    blob_id = await uploaded(thread, b"z" * (2 << 20))
    process = psutil.Process()
    before = len([file for file in process.open_files() if "/blobs/" in file.path])
    for _ in range(5):
        async with thread.http.stream("GET", f"/api/blobs/{blob_id}", headers=thread.headers) as answer:
            async for _ in answer.aiter_raw(1000):
                break
    for _ in range(100):
        if len([file for file in process.open_files() if "/blobs/" in file.path]) <= before:
            return
        await asyncio.sleep(0.05)
    raise AssertionError([file.path for file in process.open_files()])


NAMED = {"Range": "bytes=0-3"}
HOW = [{}, NAMED, {"Range": "bytes=-4"}, {"Range": "bytes=99-"}, NAMED | {"If-Range": '"x"'}, {"If-None-Match": "*"}]


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("stranger", ["another key", "no key"])
async def test_a_caller_without_read_access_gets_no_byte_of_a_blob_over_any_route(
    server: InProcessServer, thread: Thread, how: dict[str, str], stranger: str
) -> None:
    content = b"not for you" * 30_000
    blob_id = await uploaded(thread, content)
    other = (await server.thread()).headers if stranger == "another key" else {}
    assert (await read(thread, blob_id, headers=NAMED)).status_code == 206
    for method, way in [("GET", ""), ("GET", "?direct=true"), ("HEAD", ""), ("GET", "/lines")]:
        refused = await server.http.request(method, f"/api/blobs/{blob_id}{way}", headers=other | how)
        assert refused.status_code == 403, (method, way)
        assert b"not for" not in refused.content
        assert not {"etag", "content-range", "location", "content-disposition"} & set(refused.headers)
