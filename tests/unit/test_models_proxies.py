"""The proxy that the environment configures for an address."""

import pytest
from yarl import URL

from khala.models.streaming import proxies

PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("env", "url", "proxy"),
    [
        ({}, "https://a.example", None),
        ({"https_proxy": PROXY}, "https://a.example", PROXY),
        ({"HTTPS_PROXY": PROXY}, "https://a.example", PROXY),
        ({"https_proxy": PROXY}, "http://a.example", None),
        ({"all_proxy": "proxy.example:3128"}, "https://a.example", PROXY),
        ({"all_proxy": "http://other", "http_proxy": PROXY}, "http://a.example", PROXY),
        ({"all_proxy": PROXY, "no_proxy": "*"}, "https://a.example", None),
        ({"all_proxy": PROXY, "no_proxy": "b.example,a.example"}, "https://a.example", None),
        ({"all_proxy": PROXY, "no_proxy": ".a.example"}, "https://sub.a.example", None),
        ({"all_proxy": PROXY, "no_proxy": "a.example:8443"}, "https://a.example", PROXY),
        ({"all_proxy": PROXY, "no_proxy": "a.example:8443"}, "https://a.example:8443", None),
        ({"all_proxy": PROXY, "no_proxy": "a.example"}, "https://aa.example", PROXY),
        ({"all_proxy": PROXY, "no_proxy": "x, 10.0.0.0/8"}, "http://10.1.2.3:8000", None),
        ({"all_proxy": PROXY, "no_proxy": "10.0.0.0/8"}, "http://11.1.2.3:8000", PROXY),
        ({"all_proxy": PROXY, "no_proxy": "fd00::/8"}, "http://[fd00::1]:8000", None),
        ({"all_proxy": PROXY, "no_proxy": "10.0.0.0/nine"}, "http://10.1.2.3", PROXY),
        ({"all_proxy": PROXY}, "nowhere", None),
    ],
)
def test_the_environment_names_a_proxy(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], url: str, proxy: str | None
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert proxies.find_proxy(URL(url)) == (URL(proxy) if proxy else None)


def test_a_proxy_that_speaks_another_protocol_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:1080")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("https_proxy", raising=False)
    with pytest.raises(ValueError, match="socks5 proxies"):
        proxies.find_proxy(URL("https://a.example"))
