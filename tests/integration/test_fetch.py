"""`fetch_url`: only public addresses, also after name resolution and redirects, with limits on size and time."""

import asyncio
import gzip
import ipaddress
import ssl
import zlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from khala.domain import ids
from khala.tools.fetch_url import FetchUrl
from khala.tools.readable import extract_text
from khala.tools.ssrf_guard import is_public, parse_networks
from tests.support.certificates import certificate
from tests.support.pages import Pages, pages
from tests.support.tool_calls import ToolCallOutput, call, guest, user

HERE = parse_networks(["127.0.0.1"])
LINK_LOCAL = "http://169.254.169.254/latest/meta-data/"


@pytest_asyncio.fixture
async def web() -> AsyncIterator[Pages]:
    async with pages() as made:
        yield made


async def fetch(url: str, tool: FetchUrl | None = None, **args: Any) -> ToolCallOutput:
    return await call(tool or FetchUrl(allow=HERE), user(ids.new()), url=url, **args)


class ScriptedResolver:
    """A resolver that returns the next of its answers for each lookup."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.answers.pop(0).split(",")


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "localhost", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0.0.0.0", "0", "[::1]",
        "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "169.254.169.254", "10.0.0.1", "192.168.1.1", "172.16.0.1",
        "100.64.0.1", "[fe80::1]", "[fc00::1]", "[fd00:ec2::254]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]",
        "224.0.0.1", "240.0.0.1", "255.255.255.255", "168.63.129.16", "192.0.0.192", "198.18.0.1", "[ff02::1]",
        "[2001:db8::1]", "[2001::1]", "[64:ff9b:1::101:101]", "[64:ff9b:1:101:1:100::]", "①27.0.0.1",
    ],
)  # fmt: skip
async def test_addresses_that_are_not_public_are_refused_in_every_notation(host: str) -> None:
    for port in ("", ":443", ":8000"):
        result = await fetch(f"http://{host}{port}/", FetchUrl())
        assert not result.ok
        assert result.result.code in ("forbidden", "bad_arguments"), result.text


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "64:ff9b::101:101", "2002:101:101::"])
def test_public_addresses_are_allowed(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "where",
    [
        LINK_LOCAL, "http://127.0.0.2/", "http://[::1]/", "http://2130706434/", "//127.0.0.2/",
        "http://localhost.:1/", "http://[::ffff:127.0.0.2]/",
    ],
)  # fmt: skip
async def test_a_redirect_is_checked_as_the_first_address_was(web: Pages, where: str) -> None:
    web.respond("/", b"", "302 Found", Location=where)
    names = ScriptedResolver("127.0.0.1", *(["127.0.0.2"] if "[" not in where else ["::1"]))
    result = await fetch(web.url(), FetchUrl(allow=HERE, resolve=names))
    assert (result.ok, result.result.code) == (False, "forbidden"), result.text
    assert len(web.requests) == 1


@pytest.mark.parametrize(
    "where",
    ["file:///etc/passwd", "gopher://127.0.0.1/", "http://a:b@127.0.0.1/", "http://0177.0.0.2/", "https://xn--/"],
)
async def test_a_redirect_to_another_scheme_or_an_invalid_url_is_refused(web: Pages, where: str) -> None:
    web.respond("/", b"", "302 Found", Location=where)
    assert (await fetch(web.url())).result.code == "bad_arguments"
    assert (await fetch(where)).result.code == "bad_arguments"


async def test_a_name_is_resolved_once_and_the_checked_address_is_the_one_connected_to(web: Pages) -> None:
    web.respond("/", b"here", Content_Type="text/plain")
    names = ScriptedResolver("127.0.0.1", "127.0.0.2")
    tool = FetchUrl(allow=HERE, resolve=names)
    assert (await fetch(web.url(host="rebinding.example"), tool)).text == "here"
    assert names.asked == ["rebinding.example"]
    assert f"\r\nHost: rebinding.example:{web.port}\r\n" in web.requests[0]
    assert (await fetch(web.url(host="rebinding.example"), tool)).result.code == "forbidden"


async def test_a_name_with_one_bad_address_among_good_ones_is_refused(web: Pages) -> None:
    result = await fetch(
        web.url(host="mixed.example"), FetchUrl(allow=HERE, resolve=ScriptedResolver("127.0.0.1,10.0.0.1"))
    )
    assert (result.result.code, web.requests) == ("forbidden", [])


async def test_a_name_that_does_not_exist_is_refused_as_one_that_is_not_public() -> None:
    async def missing(host: str, port: int) -> Sequence[str]:
        raise OSError(f"{host}:{port} is unknown")

    async def empty(*_: object) -> Sequence[str]:
        return ()

    for url in ("https://db.internal/", "http://db.internal:5432/"):
        tools = [FetchUrl(resolve=resolve) for resolve in (missing, empty, ScriptedResolver("10.0.0.1"))]
        refused = [await fetch(url, tool) for tool in tools]
        assert len({(one.result.code, one.text) for one in refused}) == 1, refused


async def test_only_standard_ports_of_public_addresses_are_allowed() -> None:
    result = await fetch("http://public.example:22/", FetchUrl(resolve=ScriptedResolver("1.1.1.1")))
    assert result.text == "Port 22 is not allowed; use 80 or 443."


async def test_no_credential_of_the_server_is_sent_and_no_proxy_is_used(
    web: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    web.respond("/", b"", "302 Found", Location="/next", Set_Cookie="a=b")
    web.respond("/next", b"done", Content_Type="text/plain")
    assert (await fetch(web.url())).text == "done"
    heads = "\n".join(web.requests).lower()
    assert "cookie" not in heads
    assert "authorization" not in heads
    assert "referer" not in heads


async def test_at_most_five_redirects_are_followed(web: Pages) -> None:
    for number in range(6):
        web.respond(f"/{number}", b"", "301 Moved Permanently", Location=f"/{number + 1}")
    web.respond("/6", b"there", Content_Type="text/plain")
    assert (await fetch(web.url("/1"))).text == "there"
    assert (await fetch(web.url("/0"))).text == "The address redirects more than 5 times."


async def test_a_body_that_is_too_large_is_refused_by_its_length_or_while_it_is_read(web: Pages) -> None:
    web.respond("/told", b"x" * 5000, Content_Type="text/plain")
    web.respond("/untold", b"x" * 5000, Content_Type="text/plain", Connection="close")
    web.answers["/untold"] = web.answers["/untold"].replace(b"Content-Length: 5000\r\n", b"")
    for path in ("/told", "/untold"):
        assert (await fetch(web.url(path), maxBytes=4999)).result.code == "too_large"
        assert len((await fetch(web.url(path), maxBytes=5000)).content) == 5000


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_decompression_bomb_is_stopped_at_the_limit(web: Pages, encoding: str) -> None:
    plain = bytes(64 << 20)
    packed = gzip.compress(plain, mtime=0) if encoding == "gzip" else zlib.compress(plain)
    assert len(packed) < 100_000
    web.respond("/bomb", packed, Content_Type="application/octet-stream", Content_Encoding=encoding)
    result = await fetch(web.url("/bomb"))
    assert (result.result.code, len(result.content) <= 5 << 20) == ("too_large", True)


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress(b"one ", mtime=0) + gzip.compress(b"two", mtime=0)),
        ("deflate", zlib.compress(b"one two")),
        ("deflate", zlib.compress(b"one two")[2:-4]),
        ("identity", b"one two"),
    ],
)
async def test_a_compressed_body_is_unpacked(web: Pages, encoding: str, packed: bytes) -> None:
    web.respond("/", packed, Content_Type="text/plain", Content_Encoding=encoding)
    assert (await fetch(web.url())).text == "one two"


@pytest.mark.parametrize(
    ("encoding", "body"), [("gzip", b"nonsense"), ("br", b"x"), ("gzip", gzip.compress(b"x" * 99, mtime=0)[:-9])]
)
async def test_a_body_that_does_not_match_its_encoding_is_an_error(web: Pages, encoding: str, body: bytes) -> None:
    web.respond("/", body, Content_Type="text/plain", Content_Encoding=encoding)
    result = await fetch(web.url())
    assert (result.ok, result.text.startswith("The body")) == (False, True)


async def test_a_page_is_returned_as_text_or_raw_on_request(web: Pages) -> None:
    page = (
        b"<html><head><title>Aiur &amp; all</title><script>x<y</script></head><body><h1>Home</h1><p>En <b>taro</b></p>"
    )
    web.respond("/", page, Content_Type="text/html; charset=utf-8")
    assert (await fetch(web.url())).text == f"Aiur & all\n{web.url()}\n\n# Home\nEn taro"
    raw = await fetch(web.url(), format="raw")
    assert (raw.content, raw.result.media_type) == (page, "text/html; charset=utf-8")


async def test_an_error_status_of_the_host_is_reported(web: Pages) -> None:
    web.respond("/500", b"", "500 Internal Server Error")
    web.respond("/599", b"", "599 Strange")
    web.respond("/403", b"", "403 Forbidden")
    web.answers["/nonsense"] = b"hello\r\n\r\n"
    assert (await fetch(web.url("/none"))).text == "127.0.0.1 answered 404 Not Found."
    codes = [(await fetch(web.url(path))).result.code for path in ("/none", "/500", "/599", "/403", "/nonsense")]
    assert codes == ["not_found", "unavailable", "unavailable", "forbidden", "unavailable"]


async def test_a_silent_host_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    monkeypatch.setattr("khala.tools.http_client.TIMEOUTS", {"connect": 0.2, "read": 0.2, "write": 0.2, "pool": 0.2})
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        result = await fetch(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    assert (result.result.code, result.text) == ("timeout", "The host took too long to respond.")


async def test_a_guest_may_not_reach_the_network(web: Pages) -> None:
    result = await call(FetchUrl(allow=HERE), guest(ids.new()), url=web.url())
    assert (result.result.code, web.requests) == ("forbidden", [])
    assert "needs the permission network" in result.text


async def test_over_tls_the_host_name_of_the_url_is_requested_and_verified(tmp_path: Path) -> None:
    file = certificate(tmp_path, "good.example")
    names: list[str | None] = []
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    server.sni_callback = lambda _, name, __: names.append(name)
    async with pages(server) as web:
        web.respond("/", b"secret", Content_Type="text/plain")
        answers = ["127.0.0.1"] * 3
        tool = FetchUrl(allow=HERE, resolve=ScriptedResolver(*answers), trust=ssl.create_default_context(cafile=file))
        assert (await fetch(f"https://good.example:{web.port}/", tool)).text == "secret"
        assert names == ["good.example"]
        assert (await fetch(f"https://other.example:{web.port}/", tool)).result.code == "unavailable"
        distrustful = FetchUrl(allow=HERE, resolve=ScriptedResolver(*answers))
        assert (await fetch(f"https://good.example:{web.port}/", distrustful)).result.code == "unavailable"
        assert len(web.requests) == 1


@pytest.mark.parametrize(
    ("page", "read"),
    [
        ("a<br>b<!-- <p>c -->d", "a\nbd"),
        ("<p title='a > b'>x</p><style>y{}</style>z", "x\nz"),
        ("1 < 2 &lt; 3 &#65;&#x42; &nope; &#99999999999;", "1 < 2 < 3 AB &nope; \ufffd"),
        ("<ul><li>a<li>b</ul>", "- a\n- b"),
        ("<script>never ends <p>x", ""),
        ("<SCRIPT>x</ScRiPt >y", "y"),
        ("<p>open <a href='", "open"),
        ("&#" + "9" * 5000 + ";", "&#" + "9" * 5000 + ";"),
        ("<!doctype html><?xml?>x", "x"),
    ],
)
def test_a_page_is_read_as_a_person_reads_it(page: str, read: str) -> None:
    assert extract_text(page)[1] == read


@pytest.mark.parametrize("piece", ["<", "<a ", "<a '", '<a "', "<!--", "<script>", "</", "&#9", "<p>", "<!"])
def test_a_hostile_page_is_read_in_linear_time(piece: str) -> None:
    extract_text(piece * (300_000 // len(piece)))
