"""The session cookie: hidden from scripts and other sites and, over TLS, sent only over TLS."""

from datetime import timedelta

from litestar.datastructures import Cookie

from khala.api.http.request_origin import Connection, OriginPolicy, is_https
from khala.store.accounts import sessions

COOKIE_NAME = "khala_session"
SECURE_COOKIE_NAME = f"__Host-{COOKIE_NAME}"
"""Browsers accept a cookie with this prefix only from this host and over TLS."""


def session_secret(connection: Connection, origins: OriginPolicy) -> str | None:
    """Return the session's secret of this request."""
    return connection.cookies.get(SECURE_COOKIE_NAME if is_https(connection, origins) else COOKIE_NAME)


def signed_in(connection: Connection, origins: OriginPolicy, session: str) -> Cookie:
    """Return the cookie that signs a browser in."""
    return _cookie(connection, origins, session, sessions.LIFETIME)


def signed_out(connection: Connection, origins: OriginPolicy) -> Cookie:
    """Return the cookie that signs a browser out."""
    return _cookie(connection, origins, "", timedelta(0))


def _cookie(connection: Connection, origins: OriginPolicy, value: str, life: timedelta) -> Cookie:
    tls = is_https(connection, origins)
    return Cookie(
        key=SECURE_COOKIE_NAME if tls else COOKIE_NAME,
        value=value,
        max_age=int(life.total_seconds()),
        path="/",
        secure=tls,
        httponly=True,
        samesite="lax",
    )
