"""The session's cookie: out of reach of scripts, of other sites and, where there is TLS, of anything but TLS."""

from datetime import timedelta

from litestar.datastructures import Cookie

from khala.api.http.request_origin import Connection, OriginPolicy, is_https
from khala.store.accounts import sessions

PLAIN = "khala_session"
SECURE = f"__Host-{PLAIN}"
"""Browsers take a cookie by this name from this very host and over TLS only."""


def secret(connection: Connection, origins: OriginPolicy) -> str | None:
    """The session's secret that came with this request."""
    return connection.cookies.get(SECURE if is_https(connection, origins) else PLAIN)


def keeping(connection: Connection, origins: OriginPolicy, session: str) -> Cookie:
    """The cookie that signs a browser in."""
    return _cookie(connection, origins, session, sessions.LIFETIME)


def clearing(connection: Connection, origins: OriginPolicy) -> Cookie:
    """The cookie that signs a browser out."""
    return _cookie(connection, origins, "", timedelta(0))


def _cookie(connection: Connection, origins: OriginPolicy, value: str, life: timedelta) -> Cookie:
    tls = is_https(connection, origins)
    return Cookie(
        key=SECURE if tls else PLAIN,
        value=value,
        max_age=int(life.total_seconds()),
        path="/",
        secure=tls,
        httponly=True,
        samesite="lax",
    )
