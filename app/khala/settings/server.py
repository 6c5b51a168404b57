"""Settings of the server: its address, the names and proxies it trusts, and how long connections last."""

import re
from typing import Annotated, TypeAlias

from pydantic import BeforeValidator

from khala.domain import allowed_hosts
from khala.domain.allowed_hosts import AllowedHosts
from khala.settings.fields import (
    Networks,
    Number,
    SettingGroup,
    SwitchValue,
    TextValue,
    ValueKind,
    WebUrl,
    Whole,
    read_words,
    setting,
)

FRAME_ANCESTOR = re.compile(r"https?://(?:\*\.)?[A-Za-z0-9.-]+(?::\d{1,5})?|https?://\[[0-9A-Fa-f:.]+\](?::\d{1,5})?")
"""An origin that may be put into the header `Content-Security-Policy`."""
ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^\s/?#@\\A-Z]+")
"""An origin as browsers send it: without a path, and in lower case. `null` is none: any page can have that one."""
WELCOME = "Hi! Ask me anything. Your conversation is saved, even if you close this page."


def _hosts(value: object) -> tuple[str, ...]:
    try:
        return tuple(map(allowed_hosts.validated_host, read_words(value)))
    except ValueError as error:
        raise ValueError(f"must be names like chat.example.com or *.example.com: {error}.") from error


def _origins(value: object) -> tuple[str, ...]:
    origins = read_words(value)
    for origin in origins:
        if not ORIGIN.fullmatch(origin):
            raise ValueError(f"must be origins like https://shop.example.com, without a path, or *, not {origin!r}")
    return origins


def _frame_ancestors(value: object) -> tuple[str, ...]:
    origins = read_words(value)
    for origin in origins:
        if not FRAME_ANCESTOR.fullmatch(origin):
            raise ValueError(f"must be origins like https://shop.example.com or https://*.example.com, not {origin!r}")
    return origins


def _public_url(value: object) -> object:
    return value.rstrip("/") if isinstance(value, str) else value


HostNames: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_hosts), ValueKind("list of host names")]
Origins: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_origins), ValueKind("list of origins")]
FrameAncestors: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_frame_ancestors), ValueKind("list of origins")]
PublicUrl: TypeAlias = Annotated[WebUrl, BeforeValidator(_public_url)]


class ServerSettings(SettingGroup):
    """The HTTP server of `khala serve`."""

    host: TextValue = setting("HOST", "127.0.0.1", "Address to listen on.")
    port: Whole = setting("PORT", 8000, "Port to listen on. 0 takes a free one.", minimum=0, maximum=65_535)
    public_url: PublicUrl | None = setting(
        "KHALA_PUBLIC_URL",
        None,
        "Address at which people reach the server, as `https://chat.example.com`. With `https`, cookies are `__Host-` "
        "cookies and browsers are told to use TLS only.",
        shown_default="the address of each request",
    )
    hosts: HostNames = setting(
        "KHALA_HOSTS",
        (),
        "Host names and addresses that the server answers to, as `chat.example.com,*.example.com`; `*` for all. This "
        "machine's own names are always allowed.",
        shown_default="the host of `KHALA_PUBLIC_URL`; without one, this machine's own names if `HOST` is a loopback "
        "address, else all",
    )
    origins: Origins = setting(
        "KHALA_ORIGINS",
        (),
        "Origins of other web pages that may call the API, as `https://shop.example.com`; `*` for any, but without "
        "cookies.",
    )
    frame_ancestors: FrameAncestors = setting(
        "KHALA_FRAME_ANCESTORS",
        (),
        "Origins of web pages that may show the chat page in a frame, as `https://shop.example.com`. People in a frame "
        "are guests, since browsers do not send the session's cookie there.",
    )
    trusted_proxies: Networks = setting(
        "KHALA_TRUSTED_PROXIES",
        (),
        "Addresses and networks of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` headers are trusted, as "
        "`10.0.0.0/8,::1`.",
    )
    body_pause_seconds: Number = setting(
        "KHALA_BODY_SECONDS",
        30.0,
        "Longest pause within a request's body before the request gets status 408. On average a body must arrive at "
        "16 KiB/s.",
        unit="seconds",
        minimum=0.1,
        maximum=600,
    )
    keep_alive_seconds: Whole = setting(
        "KHALA_KEEP_ALIVE_SECONDS",
        75,
        "Time that an HTTP connection may be idle. It must be longer than the idle time of the proxy in front of "
        "Khala, so that no request meets a connection that is being closed.",
        unit="seconds",
        minimum=1,
        maximum=3600,
    )
    drain_seconds: Number = setting(
        "KHALA_DRAIN_SECONDS",
        0.0,
        "Time that `khala serve` continues to serve after SIGTERM, with `/api/health/ready` at 503, so that load "
        "balancers send no more requests. The grace time of runs follows it.",
        unit="seconds",
        minimum=0,
        maximum=600,
    )
    undo_seconds: Number = setting(
        "KHALA_UNDO_SECONDS",
        30,
        "Time in which the deletion of a thread can be undone. Its content is purged afterwards.",
        unit="seconds",
        minimum=0,
        maximum=3600,
    )
    welcome: str = setting(
        "KHALA_WELCOME",
        WELCOME,
        "First message of a new thread; empty for none.",
        blank_is_value=True,
    )
    public_threads: SwitchValue = setting(
        "KHALA_PUBLIC_THREADS", default=False, description="1 lets owners open threads to all readers."
    )

    @property
    def allowed_hosts(self) -> AllowedHosts:
        """The hosts that the server answers to."""
        return allowed_hosts.choose_hosts(self.hosts, self.public_url, listening=self.host)
