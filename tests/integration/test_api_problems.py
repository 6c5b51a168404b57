"""No request causes a 500: every refusal is a problem with a code."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio

from khala.api.http import http_protocol as heads
from tests.integration.test_api_threads import assert_problem
from tests.support.client import Thread
from tests.support.in_process import InProcessServer, khala
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON = {"Content-Type": "application/json"}

server = server_fixture(with_executor=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def thread(server: InProcessServer) -> Thread:
    return await server.thread()


async def send_body(thread: Thread, body: bytes, **headers: str) -> httpx.Response:
    """Send these bytes as a message, valid or not."""
    path = f"/api/threads/{thread.id}/send"
    return await thread.http.post(path, content=body, headers=thread.headers | JSON | headers)


async def exchange(server: InProcessServer, request: bytes) -> bytes:
    """The server's response to these bytes, until it closes the connection or 5 seconds have passed."""
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(request)
    answer = b""
    try:
        async with asyncio.timeout(5):
            while chunk := await reader.read(65536):
                answer += chunk
    except TimeoutError:
        pass
    writer.close()
    return answer


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"text":', id="cut off"),
        pytest.param(b"text=Hello", id="no JSON"),
        pytest.param(b"[" * 200_000, id="nested arrays, unclosed"),
        pytest.param(b"[" * 200_000 + b"]" * 200_000, id="nested arrays"),
        pytest.param(b'{"a":' * 100_000, id="nested objects"),
        pytest.param(b'{"text":"a","b":' + b"[" * 5000 + b"]" * 5000 + b"}", id="nested in a field nobody asked for"),
        pytest.param(b'{"text":' + b"9" * 100_000 + b"}", id="a huge whole number"),
        pytest.param(b'{"text":"a","b":1e999999}', id="a huge number"),
        pytest.param(b'{"text":"a","b":NaN}', id="no number"),
        pytest.param(b'{"text":"\xff\xfe"}', id="no UTF-8"),
        pytest.param(b'{"text":"\xed\xa0\x80"}', id="a surrogate in UTF-8"),
        pytest.param(b'{"text":"\\ud800"}', id="half a surrogate pair"),
        pytest.param('{"text":"a"}'.encode("utf-16"), id="UTF-16"),
        pytest.param(b'\xef\xbb\xbf{"text":"a"}', id="a byte order mark"),
        pytest.param(b'{"text":"a"} {"text":"b"}', id="two values"),
        pytest.param(b"\0", id="NUL"),
    ],
)
async def test_a_body_that_is_not_json_is_refused(thread: Thread, body: bytes) -> None:
    assert_problem(await send_body(thread, body), 400, "invalid_input")


@pytest.mark.parametrize(
    "media_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "multipart/form-data; boundary=",
     "application/msgpack", "application/jsonx", ";;;=\"\\", "*/*", "text/plain; application/json"],
)  # fmt: skip
async def test_a_body_with_another_media_type_than_json_is_refused(thread: Thread, media_type: str) -> None:
    assert_problem(
        await send_body(thread, b'{"text":"Hello"}', **{"Content-Type": media_type}), 415, "unsupported_media_type"
    )


async def test_a_body_without_a_media_type_is_refused(server: InProcessServer, thread: Thread) -> None:
    for extra in ({}, {"Transfer-Encoding": "chunked"}):
        path = f"/api/threads/{thread.id}/send"
        content = b'{"text":"Hello"}' if not extra else chunks(b'{"text":"Hello"}')
        response = await server.http.post(path, content=content, headers=thread.headers | extra)
        assert_problem(response, 415, "unsupported_media_type")


async def chunks(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def test_a_body_over_a_mebibyte_is_refused_before_and_while_it_is_read(thread: Thread) -> None:
    body = json.dumps({"text": "x", "padding": "x" * (1 << 20)}).encode()
    assert_problem(await send_body(thread, body), 413, "payload_too_large")
    path = f"/api/threads/{thread.id}/send"
    streamed = chunks(*[body[start : start + 65536] for start in range(0, len(body), 65536)])
    assert_problem(
        await thread.http.post(path, content=streamed, headers=thread.headers | JSON), 413, "payload_too_large"
    )
    assert_problem(await send_body(thread, b" " * (1 << 20)), 400, "invalid_input")


async def test_a_body_with_more_arrays_and_objects_than_are_decoded_in_time_is_refused(thread: Thread) -> None:
    body = b'{"text":"a","b":[[]' + b",[]" * 200_000 + b"]}"
    assert_problem(await send_body(thread, body), 413, "payload_too_large")


async def test_the_last_of_duplicate_json_keys_counts(thread: Thread) -> None:
    assert (
        assert_problem(await send_body(thread, b'{"text":"Hello","text":""}'), 400, "invalid_input")["errors"][0][
            "path"
        ]
        == "text"
    )


@pytest.mark.parametrize(
    ("query", "path"), [("kind=none", "kind"), ("threadId=none", "threadId"), ("limit=0", "limit")]
)
async def test_an_invalid_query_parameter_has_the_name_that_was_sent(thread: Thread, query: str, path: str) -> None:
    refused = await thread.http.get(f"/api/search?q=hello&{query}", headers=thread.headers)
    assert [error["path"] for error in assert_problem(refused, 400, "invalid_input")["errors"]] == [path]


@pytest.mark.parametrize("path", ["/nothing", "/api", "/api/", "/api/nothing", "/api/openapi.yaml", "/api/threads/a/b",
                                  "/schema", "/t/abc", "/api/%00", "/%ff", "/" + "a" * 8000])  # fmt: skip
async def test_an_unknown_path_is_not_found(server: InProcessServer, path: str) -> None:
    problem = assert_problem(await server.http.get(path), 404, "not_found")
    assert problem["detail"] == "There is nothing at this URL."


@pytest.mark.parametrize("path", ["nothing.js", "", "../settings.py", "..%2fsettings.py", "%2e%2e/settings.py",
                                  "..%5csettings.py", "/etc/passwd", "%2fetc%2fpasswd", "....//settings.py", "%00",
                                  "icon.svg%00.png", "icon.svg/x", "a" * 5000, "a/" * 1000, "%ed%a0%80", ".",
                                  "%c0%ae%c0%ae/settings.py", "..%252fsettings.py"])  # fmt: skip
async def test_no_path_leads_out_of_the_folder_of_files(server: InProcessServer, path: str) -> None:
    request = f"GET /web/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    head, _, body = (await exchange(server, request.encode())).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404 ")
    assert json.loads(body)["detail"] == "There is nothing at this URL.", "the detail does not reveal the folder"


@pytest.mark.parametrize(("method", "path", "allowed"), [
    ("PUT", "/api/threads", {"GET", "POST", "OPTIONS"}),
    ("TRACE", "/api/threads", {"GET", "POST", "OPTIONS"}),
    ("POST", "/api/health/live", {"GET", "OPTIONS"}),
    ("GET", "/api/threads/01a1fbf2-37c2-7506-a120-9f98121662b0/send", {"POST", "OPTIONS"}),
    ("POST", "/", {"GET", "OPTIONS"}),
    ("DELETE", "/web/icon.svg", {"GET", "HEAD", "OPTIONS"}),
])  # fmt: skip
async def test_an_unsupported_method_is_answered_with_the_supported_ones(
    server: InProcessServer, method: str, path: str, allowed: set[str]
) -> None:
    response = await server.http.request(method, path)
    assert_problem(response, 405, "method_not_allowed")
    assert set(response.headers["allow"].split(", ")) == allowed


@pytest.mark.parametrize(("path", "allowed"), [
    ("/api/threads", {"GET", "POST", "OPTIONS"}),
    ("/api/threads/01a1fbf2-37c2-7506-a120-9f98121662b0", {"GET", "PATCH", "DELETE", "OPTIONS"}),
    ("/api/threads/01a1fbf2-37c2-7506-a120-9f98121662b0/send", {"POST", "OPTIONS"}),
    ("/api/me/tool-rules", {"GET", "PUT", "OPTIONS"}),
    ("/api/openapi.json", {"GET", "OPTIONS"}),
    ("/", {"GET", "OPTIONS"}),
    ("/web/icon.svg", {"GET", "HEAD", "OPTIONS"}),
])  # fmt: skip
async def test_options_names_every_method_of_a_path(server: InProcessServer, path: str, allowed: set[str]) -> None:
    response = await server.http.options(path)
    assert response.status_code == 204
    assert set(response.headers["allow"].split(", ")) == allowed


async def test_the_websocket_path_names_the_method_that_opens_one(server: InProcessServer) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        response = await server.http.request(method, "/api/ws")
        assert_problem(response, 405, "method_not_allowed")
        assert response.headers["allow"] == "GET"


@pytest.mark.parametrize("path", ["/", "/web/icon.svg", "/web/nothing", "/nothing", "/api/nothing", "/api/threads",
                                  "/api/health/live", "/api/openapi.json"])  # fmt: skip
async def test_every_response_has_the_security_headers(server: InProcessServer, path: str) -> None:
    headers = (await server.http.get(path)).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-frame-options"] == "DENY"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"].replace("'wasm-unsafe-eval'", "")
    assert "server" not in headers
    assert (headers.get("cache-control") == "no-store") == path.startswith("/api/")


@pytest.mark.parametrize("path", ["/", "/t/01a1fbf2-37c2-7506-a120-9f98121662b0"])
async def test_the_page_is_served(server: InProcessServer, path: str) -> None:
    response = await server.http.get(path)
    assert (response.status_code, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert response.headers["cache-control"] == "no-cache"
    assert "<title>Khala</title>" in response.text


async def test_the_health_routes_report_a_healthy_server(server: InProcessServer) -> None:
    live, ready = await server.http.get("/api/health/live"), await server.http.get("/api/health/ready")
    assert (live.status_code, live.json()) == (200, {"ok": True})
    assert (ready.status_code, ready.json()) == (
        200,
        {
            "ok": True,
            "database": True,
            "writable": True,
            "feed": True,
            "blobs": True,
            "disk": True,
            "stopping": False,
        },
    )


@pytest.mark.parametrize("key", [b"\xff", b"a\tb", b"x" * 20_000, "ключ".encode(), b"'; --"])
async def test_a_key_of_arbitrary_bytes_is_forbidden(thread: Thread, key: bytes) -> None:
    response = await thread.http.get(f"/api/threads/{thread.id}", headers=[(b"X-Anon-Key", key)])
    assert_problem(response, 403, "forbidden")


@pytest.mark.parametrize("headers", [
                                     {"Content-Length": "5, 5"}, {"Content-Length": "-1"}, {"Content-Length": "1e3"},
                                     {"Transfer-Encoding": "gzip"}, {"Host": "\xff"}, {"Expect": "100-continue"},
                                     {"Cookie": "a=" + "b" * 20_000}, {"Accept": "\xff;q=z"}, {"Range": "bytes=9-1"},
                                     {"Accept-Encoding": ";;;"},
                                     {"Connection": "upgrade", "Upgrade": "h2c"}])  # fmt: skip
async def test_odd_headers_cause_no_crash(server: InProcessServer, headers: dict[str, str]) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in ({"Host": "localhost"} | headers).items())
    for target in ("GET /api/threads", "POST /api/threads", "GET /web/icon.svg"):
        request = f"{target} HTTP/1.1\r\n{lines}Connection: close\r\n\r\n".encode("latin-1")
        answer = await asyncio.wait_for(exchange(server, request), 10)
        assert not answer.startswith(b"HTTP/1.1 5"), answer


async def test_a_client_that_disconnects_within_its_body_leaves_no_trace(
    server: InProcessServer, thread: Thread, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    address = urlsplit(server.url)
    for _ in range(5):
        _, writer = await asyncio.open_connection(address.hostname, address.port)
        head = f"POST /api/threads/{thread.id}/send HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
        await writer.drain()
        writer.transport.abort()
    assert (await server.http.get("/api/health/live")).status_code == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "request_crashed" not in capsys.readouterr().out


async def test_half_a_request_delays_no_other_request(server: InProcessServer) -> None:
    address = urlsplit(server.url)
    slow = [await asyncio.open_connection(address.hostname, address.port) for _ in range(200)]
    for _, writer in slow:
        head = b"POST /api/threads HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(head + b"Content-Length: 9\r\n\r\n{")
    async with asyncio.timeout(5):
        assert (await server.http.get("/api/health/ready")).status_code == 200
        await server.thread()
    for _, writer in slow:
        writer.close()


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nX-A: ", b"GET / HTTP/1.1\r\n"])
async def test_an_endless_request_head_is_refused(server: InProcessServer, start: bytes) -> None:
    address = urlsplit(server.url)
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(start)
    line = b"a" * 998 + (b"\r\n" if start.endswith(b"\n") else b"aa")

    async def go_on() -> None:
        for _ in range(100):
            writer.write(line.replace(b"a", b"b: c", 1) * 100)
            await writer.drain()

    with pytest.raises(ConnectionError):
        await go_on()


async def test_a_request_head_that_never_ends_times_out(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "HEAD_TIMEOUT_SECONDS", 0.1)
    for start in (b"", b"GET", b"GET / HTTP/1.1\r\nHost: localhost\r\n"):
        address = urlsplit(server.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(start)
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""


async def test_an_idle_connection_is_kept_longer_than_by_many_clients(server: InProcessServer) -> None:
    """Many clients close a connection after five idle seconds.

    A server with the same limit would close some connections just as the client sends a request.
    """
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    for pause in (0, 6):
        await asyncio.sleep(pause)
        writer.write(b"GET /api/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(5):
            assert b"HTTP/1.1 200 OK" in await reader.readuntil(b"\r\n\r\n")
    writer.close()


async def test_only_pages_of_configured_origins_may_send_requests(database_url: str) -> None:
    async with khala(database_url, with_executor=False, KHALA_ORIGINS="https://chat.example") as server:
        preflight = {
            "Access-Control-Request-Method": "PATCH",
            "Access-Control-Request-Headers": "x-anon-key, content-type",
        }
        named = await server.http.options("/api/threads", headers={"Origin": "https://chat.example"} | preflight)
        assert named.headers["access-control-allow-origin"] == "https://chat.example"
        assert set(named.headers["allow"].split(", ")) == {"GET", "POST", "OPTIONS"}
        assert {"x-anon-key", "content-type"} <= set(named.headers["access-control-allow-headers"].lower().split(", "))
        foreign = await server.http.options("/api/threads", headers={"Origin": "https://evil.example"} | preflight)
        assert foreign.headers.get("access-control-allow-origin") not in {"*", "https://evil.example"}
        told_of = await server.http.get("/api/threads", headers={"Origin": "https://chat.example"})
        assert_problem(told_of, 401, "unauthorized")
        assert told_of.headers["access-control-allow-origin"] == "https://chat.example"


async def test_without_configured_origins_no_other_page_may_read(server: InProcessServer) -> None:
    response = await server.http.get("/api/health/live", headers={"Origin": "https://evil.example"})
    assert not [name for name in response.headers if name.startswith("access-control")]
