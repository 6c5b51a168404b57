"""The `Host` headers that this server accepts."""

import pytest

from khala import settings
from khala.domain.allowed_hosts import AllowedHosts, choose_hosts
from khala.settings import SettingError

HERE = (
    "localhost",
    "LOCALHOST:8000",
    "localhost.",
    "chat.localhost",
    "127.0.0.1",
    "127.9.9.9:80",
    "[::1]",
    "[::1]:8000",
)
ELSEWHERE = ("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "192.0.2.7",
             "[2001:db8::7]", "127.0.0.1@evil.example", "evil.example,localhost", "", ":8000", "[::1", "::1]",
             "localhost:http", "localhost:80:80", "evil.example/localhost", "localhost evil")  # fmt: skip


def test_a_server_on_loopback_without_configured_hosts_accepts_only_loopback_names() -> None:
    for listening in ("127.0.0.1", "::1", "localhost", "127.0.0.2"):
        hosts = choose_hosts((), None, listening=listening)
        assert [host for host in HERE if not hosts.allows(host)] == []
        assert [host for host in ELSEWHERE if hosts.allows(host)] == []
        assert not hosts.allows(None)


def test_a_server_on_other_interfaces_without_configured_hosts_accepts_every_name() -> None:
    for listening in ("0.0.0.0", "::", "192.0.2.7", "chat.example.com"):
        hosts = choose_hosts((), None, listening=listening)
        assert all(hosts.allows(host) for host in (*HERE, *ELSEWHERE, None))


def test_the_public_url_sets_the_accepted_host_on_every_interface() -> None:
    for listening in ("127.0.0.1", "0.0.0.0"):
        hosts = choose_hosts((), "https://Chat.Example.com:8443/khala", listening=listening)
        for host in (*HERE, "chat.example.com", "CHAT.example.com:443", "chat.example.com."):
            assert hosts.allows(host), host
        for host in (*ELSEWHERE, "example.com", "a.chat.example.com", "chat.example.com.evil.example"):
            assert not hosts.allows(host), host


def test_a_public_url_beyond_ascii_is_accepted_in_the_form_of_browsers() -> None:
    hosts = choose_hosts((), "https://b\u00fccher.example", listening="127.0.0.1")
    assert hosts.allows("xn--bcher-kva.example")
    assert not hosts.allows("bcher.example")


def test_configured_hosts_replace_the_public_one() -> None:
    hosts = choose_hosts(
        ("a.example", "*.b.example", "192.0.2.7", "2001:db8::7"), "https://chat.example", listening="0.0.0.0"
    )
    for host in (*HERE, "a.example:1", "x.b.example", "x.y.b.example", "192.0.2.7:8000", "[2001:db8::7]:8000"):
        assert hosts.allows(host), host
    for host in ("chat.example", "b.example", "xb.example", "x.a.example", "192.0.2.8"):
        assert not hosts.allows(host), host
    assert choose_hosts(("*",), "https://chat.example", listening="127.0.0.1") == AllowedHosts()


@pytest.mark.parametrize(
    "given", ["http://a.example", "a.example:8000", "a*.example", "*.*.example", "a b", "a/b", "**"]
)
def test_an_invalid_host_is_refused_at_the_start(given: str) -> None:
    with pytest.raises(SettingError, match="KHALA_HOSTS"):
        settings.from_environment({"KHALA_HOSTS": given})


def test_settings_configure_the_accepted_hosts() -> None:
    assert settings.from_environment({}).server.allowed_hosts.names == ()
    assert settings.from_environment({"HOST": "0.0.0.0"}).server.allowed_hosts.allows_any
    public = settings.from_environment({"KHALA_PUBLIC_URL": "https://a.example"})
    assert public.server.allowed_hosts.names == ("a.example",)
    assert settings.from_environment({"KHALA_HOSTS": " A.example , b.example "}).server.allowed_hosts.names == (
        "a.example",
        "b.example",
    )
