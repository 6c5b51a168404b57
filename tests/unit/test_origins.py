"""The client's address, and the proxies whose headers are trusted."""

import contextlib
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from litestar.connection import ASGIConnection

from khala.api.accounts import session_cookie
from khala.api.http.rate_limits import RateLimiter
from khala.api.http.request_origin import (
    Connection,
    OriginPolicy,
    client_address,
    client_machine,
    client_network,
    is_https,
    is_local,
    parse_networks,
)
from khala.domain.errors import RateLimited

PROXIES = parse_networks(["10.0.0.0/8", "fd00::/8"])
BEHIND = OriginPolicy(proxies=PROXIES)


def connection(peer: str | None, *hops: str, scheme: str = "http", **headers: str) -> Connection:
    raw = [(b"x-forwarded-for", hop.encode("latin-1", "replace")) for hop in hops]
    raw += [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    client = None if peer is None else (peer, 1234)
    scope: Any = {"type": "http", "scheme": scheme, "headers": raw, "client": client, "path": "/", "query_string": b""}
    return ASGIConnection(scope)


def client_address_of(peer: str | None, *hops: str, origins: OriginPolicy = BEHIND) -> str | None:
    found = client_address(connection(peer, *hops), origins)
    return None if found is None else str(found)


@pytest.mark.parametrize(
    ("peer", "hops", "address"),
    [
        ("203.0.113.9", [], "203.0.113.9"),
        ("203.0.113.9", ["198.51.100.7"], "203.0.113.9"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["6.6.6.6, 198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["6.6.6.6, 198.51.100.7, 10.1.2.3"], "198.51.100.7"),
        ("10.0.0.1", ["6.6.6.6", "198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["10.9.9.9, 10.1.2.3"], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.7:5678"], "198.51.100.7"),
        ("10.0.0.1", ["[2001:db8::7]:5678"], "2001:db8::7"),
        ("10.0.0.1", ["[2001:db8::7]"], "2001:db8::7"),
        ("10.0.0.1", ["2001:db8::7"], "2001:db8::7"),
        ("fd00::1", ["2001:db8::7"], "2001:db8::7"),
        ("10.0.0.1", ["::ffff:198.51.100.7"], "198.51.100.7"),
        ("::ffff:10.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["6.6.6.6, junk"], "10.0.0.1"),
        ("10.0.0.1", ["6.6.6.6, unknown, 10.1.2.3"], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", [",,,"], "10.0.0.1"),
        ("fe80::1%eth0", [], "fe80::1"),
        ("testclient", [], None),
        (None, ["198.51.100.7"], None),
    ],
)  # fmt: skip
def test_the_client_address_is_the_last_hop_that_is_no_trusted_proxy(
    peer: str | None, hops: list[str], address: str | None
) -> None:
    assert client_address_of(peer, *hops) == address


@given(st.ip_addresses(), st.text(st.characters(codec="latin-1", exclude_characters="\r\n\0"), max_size=60))
def test_only_headers_of_a_trusted_proxy_count(peer: Any, hops: str) -> None:
    if not any(peer in network for network in PROXIES):
        assert client_address_of(str(peer), hops) == client_address_of(str(peer))


@given(st.ip_addresses(), st.lists(st.ip_addresses(), max_size=4))
def test_what_a_client_puts_before_its_own_hop_changes_nothing(client: Any, forged: list[Any]) -> None:
    if not any((getattr(client, "ipv4_mapped", None) or client) in network for network in PROXIES):
        chain = ", ".join(str(address) for address in [*forged, client, ip_address("10.3.3.3")])
        assert client_address_of("10.0.0.1", chain) == client_address_of(str(client))


@pytest.mark.parametrize(
    ("peer", "network", "machine"),
    [
        ("203.0.113.9", "203.0.113.0/24", "203.0.113.9"),
        ("2001:db8:1:2ff::7", "2001:db8:1:200::/56", "2001:db8:1:2ff::/64"),
        ("::ffff:203.0.113.9", "203.0.113.0/24", "203.0.113.9"),
        ("127.0.0.1", None, "127.0.0.1"),
        ("::1", None, "::/64"),
        ("nobody", None, None),
    ],
)
def test_networks_and_machines_are_address_prefixes_that_clients_cannot_easily_change(
    peer: str, network: str | None, machine: str | None
) -> None:
    assert (client_network(connection(peer), OriginPolicy()), client_machine(connection(peer), OriginPolicy())) == (
        network,
        machine,
    )


def test_loopback_is_limited_if_configured_or_behind_an_undeclared_proxy() -> None:
    assert client_network(connection("127.0.0.1"), OriginPolicy(count_loopback=True)) == "127.0.0.0/24"
    assert client_network(connection("127.0.0.1", "198.51.100.7"), OriginPolicy()) == "127.0.0.0/24"
    assert not is_local(connection("127.0.0.1", "127.0.0.1"), OriginPolicy())
    declared = OriginPolicy(proxies=parse_networks(["127.0.0.1"]))
    assert client_network(connection("127.0.0.1", "198.51.100.7"), declared) == "198.51.100.0/24"


def test_only_a_trusted_proxy_reports_tls() -> None:
    assert is_https(connection("10.0.0.1", x_forwarded_proto="https"), BEHIND)
    assert is_https(connection("10.0.0.1", x_forwarded_proto="http, https"), BEHIND)
    assert not is_https(connection("10.0.0.1", x_forwarded_proto="https, http"), BEHIND)
    assert not is_https(connection("203.0.113.9", x_forwarded_proto="https"), BEHIND)
    assert is_https(connection("203.0.113.9", scheme="https"), BEHIND)
    assert is_https(connection("203.0.113.9"), OriginPolicy(public_url="https://chat.example"))


@pytest.mark.parametrize(
    ("origin", "host", "own"),
    [
        ("http://chat.example", "chat.example", True),
        ("https://chat.example:8443", "chat.example:8443", True),
        ("https://chat.example", "chat.example:8443", False),
        ("https://evil.example", "chat.example", False),
        ("https://chat.example.evil.example", "chat.example", False),
        ("https://chat.example@evil.example", "chat.example", False),
        ("null", "null", False),
        ("null", "", False),
        ("http://", "", False),
        ("file://chat.example", "chat.example", False),
        ("https://chat.example/", "chat.example", False),
        ("https://public.example", "inner:8000", True),
    ],
)
def test_an_origin_is_our_own_if_it_is_the_requested_host_or_the_public_url(origin: str, host: str, own: bool) -> None:
    assert OriginPolicy(public_url="https://public.example/khala").is_own(origin, host, https=False) == own


def test_behind_tls_an_origin_without_tls_is_foreign() -> None:
    assert OriginPolicy().is_own("https://chat.example", "chat.example", https=True)
    assert not OriginPolicy().is_own("http://chat.example", "chat.example", https=True)


def count_allowed(limiter: RateLimiter, request: Connection, *, tries: int = 700) -> int:
    """The number of requests out of `tries` that the limiter allows."""
    through = 0
    for _ in range(tries):
        with contextlib.suppress(RateLimited):
            limiter.check(request, OriginPolicy())
            through += 1
    return through


def test_by_default_loopback_is_not_limited_except_behind_an_undeclared_proxy() -> None:
    limiter = RateLimiter(600, count_loopback=False)
    assert count_allowed(limiter, connection("127.0.0.1")) == 700
    assert count_allowed(limiter, connection("::1", x_anon_key="k" * 40)) == 700
    assert 600 <= count_allowed(limiter, connection("127.0.0.1", "203.0.113.9")) < 650
    assert 600 <= count_allowed(limiter, connection("203.0.113.9")) < 650
    assert 600 <= count_allowed(RateLimiter(600, count_loopback=True), connection("127.0.0.1")) < 650
    assert count_allowed(RateLimiter(0, count_loopback=True), connection("203.0.113.9")) == 700


def test_an_ipv6_machine_is_limited_over_all_its_addresses() -> None:
    limiter = RateLimiter(600, count_loopback=False)
    through = [count_allowed(limiter, connection(f"2001:db8::{host:x}"), tries=100) for host in range(7)]
    assert 600 <= sum(through) < 650
    assert count_allowed(limiter, connection("2001:db8:0:1::1"), tries=10) == 10


def test_over_tls_only_the_host_cookie_counts() -> None:
    def secret(scheme: str, cookie: str) -> str | None:
        return session_cookie.session_secret(connection("203.0.113.9", scheme=scheme, cookie=cookie), OriginPolicy())

    planted = f"{session_cookie.COOKIE_NAME}=planted"
    assert secret("https", planted) is None
    assert secret("https", f"{planted}; {session_cookie.SECURE_COOKIE_NAME}=own") == "own"
    assert secret("http", planted) == "planted"


@pytest.mark.parametrize(
    ("forwarded", "tls"), [("https", True), ("http", False), ("https, http", False), ("http, https", True)]
)
def test_of_several_forwarded_protos_that_of_the_trusted_proxy_counts(forwarded: str, *, tls: bool) -> None:
    assert is_https(connection("10.0.0.1", x_forwarded_proto=forwarded), BEHIND) == tls
