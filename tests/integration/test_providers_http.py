"""HTTP to an OpenAI-compatible server: broken and refused connections, proxies, and connection reuse."""

import asyncio
import ssl
from base64 import b64encode
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from khala.models.port import ModelFailed, Prompt, PromptFile, PromptTurn, TextChunk
from khala.models.providers import Providers
from tests.support.certificates import certificate
from tests.support.provider_calls import PROMPT, ask, call_failure, calling, config, event_text
from tests.support.providers import Reply
from tests.support.scripted_stream import DONE, HEAD, USAGE, scripted, token

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
ENDLESS = b"HTTP/1.1 200 OK\r\n\r\n"
WHOLE = HEAD.replace(b"5000", b"%d" % len(token("a", '"stop"') + DONE)) + token("a", '"stop"') + DONE
LARGE = Prompt(
    system="",
    turns=(PromptTurn(role="user", files=(PromptFile(name="a.png", media_type="image/png", data=bytes(20 << 20)),)),),
)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


async def test_tokens_received_together_are_one_event() -> None:
    async with scripted(CHUNKED + chunk(token("a")) + chunk(token("b")) + chunk(token("c", '"stop"') + DONE)) as (m, _):
        assert (await ask(m))[:-1] == [TextChunk("abc")]


@pytest.mark.parametrize("head", [HEAD, CHUNKED])
async def test_data_before_a_lost_connection_is_read_also_by_a_busy_reader(head: bytes) -> None:
    wrap = chunk if head is CHUNKED else bytes
    pieces = (
        head + wrap(token("a")),
        *[wrap(token("b")) for _ in range(20)],
        wrap(token("c", '"stop"') + USAGE + DONE),
    )
    async with scripted(*pieces, close=True) as (model, script), model.stream(PROMPT) as events:
        first = await anext(events)
        await asyncio.wait_for(script.written.wait(), 5)
        for _ in range(20):  # lets the event loop read the data that has arrived
            await asyncio.sleep(0)
        assert event_text([first, *[event async for event in events]]) == "a" + "b" * 20 + "c"


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 two OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nlong: " + b"x" * 200_000,
        b"HTTP/1.1 200 OK\r\n",
        b"",
    ],
)
async def test_a_response_that_is_not_http_is_a_lost_connection(raw: bytes) -> None:
    async with scripted(raw, close=True) as (model, _):
        failure, _ = await call_failure(model)
    assert (failure.code, failure.retryable, failure.midstream) == ("connection_lost", True, False)


@pytest.mark.parametrize("end", [b"zz\r\n", b"5\r\nab", b"2\r\nabcd", b"", b"0\r\nno trailer"])
async def test_a_body_that_breaks_its_framing_is_a_lost_connection(end: bytes) -> None:
    received = asyncio.Event()
    raw = (CHUNKED + chunk(token("a")), received, chunk(token("b")) + end)
    async with scripted(*raw, close=True) as (model, _), model.stream(PROMPT) as events:
        assert await anext(events) == TextChunk("a")
        received.set()
        assert await anext(events) == TextChunk("b")
        with pytest.raises(ModelFailed) as caught:
            await asyncio.wait_for(anext(events), 5)
    assert (caught.value.code, caught.value.retryable, caught.value.midstream) == ("connection_lost", True, True)


@pytest.mark.parametrize("raw", [CHUNKED + chunk(token("a", '"stop"') + DONE), ENDLESS + token("a") + DONE])
async def test_an_answer_is_complete_although_its_body_breaks_off_after_it(raw: bytes) -> None:
    async with scripted(raw, close=True) as (model, _):
        assert event_text(await ask(model)) == "a"


async def test_a_reused_connection_that_dies_is_lost_and_the_request_is_not_sent_twice() -> None:
    requests = 0

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        with suppress(asyncio.IncompleteReadError):
            while not requests:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
                requests += 1
                writer.write(WHOLE)
            await reader.readuntil(b"\r\n\r\n")
            requests += 1
        writer.close()

    server = await asyncio.start_server(answer_once, "127.0.0.1", 0)
    providers = Providers(config(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
    model = providers.open("openai:local-model")
    assert event_text(await ask(model)) == "a"
    failure, _ = await call_failure(model)
    await providers.aclose()
    server.close()
    assert (failure.code, failure.midstream, requests) == ("connection_lost", False, 2)


async def test_cookies_are_not_stored() -> None:
    cookie = {"set-cookie": "who=someone; path=/"}
    async with calling("openai", Reply(status=500, headers=cookie)) as (model, server):
        await call_failure(model)
        await ask(model)
    assert "cookie" not in server.calls[1].headers


async def test_a_large_file_is_sent_whole() -> None:
    async with calling("openai") as (model, server):
        await ask(model, LARGE)
    (call,) = server.calls
    url = call.body["messages"][0]["content"][1]["image_url"]["url"]
    assert len(url) == len("data:image/png;base64,") + len(b64encode(bytes(20 << 20)))
    assert int(call.headers["content-length"]) > len(url)


def open_connections(port: int) -> int:
    """The number of connections from this process to the server that are not closed on our side."""
    found = psutil.Process().net_connections(kind="tcp")
    return sum(getattr(result.raddr, "port", None) == port for result in found)


async def until_closed(port: int) -> None:
    """Wait until no connection to the server is left."""
    async with asyncio.timeout(5):
        while open_connections(port):
            await asyncio.sleep(0.01)


async def test_a_server_that_reads_nothing_times_out_and_its_connection_is_closed() -> None:
    async with scripted(reads=False, read_timeout=0.3) as (model, script):
        with pytest.raises(ModelFailed) as caught:
            await ask(model, LARGE)
        await until_closed(script.port)
    assert (caught.value.code, caught.value.retryable, caught.value.midstream) == ("timeout", True, False)


async def test_cancelling_a_request_that_is_not_read_closes_its_connection() -> None:
    async with scripted(reads=False) as (model, script):
        asking = asyncio.create_task(ask(model, LARGE))
        await asyncio.wait_for(script.written.wait(), 5)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until_closed(script.port)


async def test_a_proxy_of_the_environment_is_used_with_its_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted(WHOLE) as (_, proxy):
        monkeypatch.setenv("http_proxy", f"http://user:p%40ss@127.0.0.1:{proxy.port}")
        async with scripted(url="http://models.example/v1") as (model, server):
            assert event_text(await ask(model)) == "a"
    head = proxy.request_heads[0].lower()
    assert head.startswith("post http://models.example/v1/chat/completions http/1.1")
    assert f"proxy-authorization: basic {b64encode(b'user:p@ss').decode()}".lower() in head
    assert "authorization: bearer sk-1" in head
    assert not server.request_heads


async def test_a_host_that_needs_no_proxy_is_called_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "example.org, 127.0.0.0/8")
    async with scripted(WHOLE) as (model, _):
        assert event_text(await ask(model)) == "a"


@pytest.mark.parametrize("status", [b"407 Proxy Authentication Required", b"502 Bad Gateway"])
async def test_a_proxy_that_refuses_to_connect_is_a_lost_connection_and_sees_no_key(
    monkeypatch: pytest.MonkeyPatch, status: bytes
) -> None:
    async with scripted(b"HTTP/1.1 %b\r\ncontent-length: 0\r\n\r\n" % status, reads=False) as (_, proxy):
        monkeypatch.setenv("https_proxy", f"http://user:pass@127.0.0.1:{proxy.port}")
        async with scripted(url="https://models.example/v1") as (model, _):
            failure, _ = await call_failure(model)
    assert (failure.code, failure.midstream) == ("connection_lost", False)
    (head,) = proxy.request_heads
    assert head.startswith("CONNECT models.example:443 HTTP/1.1")
    assert "sk-1" not in head
    assert "proxy-authorization: basic" in head.lower()


async def test_an_unreachable_proxy_is_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with scripted(url="http://models.example/v1") as (model, _):
        failure, _ = await call_failure(model)
    assert (failure.code, failure.midstream) == ("connection_lost", False)


async def test_a_netrc_does_not_change_the_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("default login someone password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with scripted(WHOLE) as (model, server):
        assert event_text(await ask(model)) == "a"
    assert "authorization: bearer sk-1" in server.request_heads[0].lower()


async def test_credentials_in_the_url_are_used() -> None:
    async with scripted(WHOLE, url="http://user:pass@127.0.0.1:{port}/v1") as (model, server):
        assert event_text(await ask(model)) == "a"
    assert f"authorization: basic {b64encode(b'user:pass').decode()}".lower() in server.request_heads[0].lower()
    assert "sk-1" not in server.request_heads[0]


async def test_over_tls_a_server_is_trusted_by_its_certificate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = certificate(tmp_path, "localhost")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(file)
    at = "https://localhost:{port}/v1"
    async with scripted(WHOLE, url=at, tls=tls) as (model, server):
        failure, _ = await call_failure(model)
        assert (failure.code, failure.midstream, server.request_heads) == ("connection_lost", False, [])
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    async with scripted(WHOLE, url=at, tls=tls) as (model, _):
        assert event_text(await ask(model)) == "a"
    async with scripted(WHOLE, url=at.replace("localhost", "127.0.0.1"), tls=tls) as (model, _):
        failure, _ = await call_failure(model)
        assert failure.code == "connection_lost"


async def test_an_expired_certificate_is_named_and_gets_no_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = certificate(tmp_path, "localhost", days=-1)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(file)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    async with scripted(WHOLE, url="https://localhost:{port}/v1", tls=tls) as (model, server):
        failure, _ = await call_failure(model)
    assert (failure.code, server.request_heads) == ("connection_lost", [])
    assert "certificate of" in failure.message
    assert "has expired" in failure.message


async def test_a_server_without_tls_at_an_https_url_is_a_lost_connection() -> None:
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with scripted(url=f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1") as (model, _):
        failure, _ = await call_failure(model)
    server.close()
    assert (failure.code, failure.midstream) == ("connection_lost", False)
