"""The page of a development server: it takes webhooks and lists them, and signs the developer in.

It listens on a port of its own, on loopback. Everything but the webhook needs the secret of its address.
"""

import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from html import escape
from typing import Any

import uvicorn
from litestar import Litestar, MediaType, Request, Response, get, post
from litestar.datastructures import Cookie, State
from litestar.exceptions import NotFoundException
from litestar.params import FromPath, FromQuery
from litestar.response import Redirect

from khala.api.accounts.session_cookie import COOKIE_NAME
from khala.api.http.host_guard import HostGuard
from khala.api.http.http_protocol import BoundedHttpProtocol, UnsignalledServer, open_listening_socket, socket_url
from khala.dev.delivery_log import DeliveryLog, ReceivedDelivery
from khala.domain.allowed_hosts import AllowedHosts
from khala.lifecycle import background

WEBHOOK_PATH = "/webhook"
MAX_WEBHOOK_BYTES = 1 << 20
CLOSE_TIMEOUT_SECONDS = 1
BACKLOG = 128
SESSION_SECONDS = 30 * 86_400
PAGES = {"chat": "/?signed-in", "console": "/console"}
"""Where a sign-in leads, by the last part of its address. The chat page asks who is signed in only if it is told to."""
HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color-scheme: light dark }
article { border-top: 1px solid color-mix(in srgb, currentColor 25%, transparent); padding: .5rem 0 }
pre { overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere } time { opacity: .7 }
"""  # noqa: E501
SCRIPT = """
const list = document.querySelector("#deliveries");
async function poll() {
  const newest = list.querySelector("article")?.dataset.number ?? "0";
  const response = await fetch(`rows?after=${newest}`).catch(() => undefined);
  const rows = response?.ok ? await response.text() : "";
  if (rows) { document.querySelector("#none")?.remove(); list.insertAdjacentHTML("afterbegin", rows); }
  setTimeout(poll, 1000);
}
setTimeout(poll, 1000);
"""


class DevPage:
    """The page's state. `address` is that of the Khala server; `begin_session` returns a new session's secret."""

    def __init__(self, secret: str, deliveries: DeliveryLog) -> None:
        self.secret = secret
        self.deliveries = deliveries
        self.address = ""
        self.begin_session: Callable[[], Any] | None = None

    def check(self, secret: str) -> None:
        """Raise `NotFoundException` for another secret than the page's."""
        if not secrets.compare_digest(secret.encode(), self.secret.encode()):
            raise NotFoundException("There is no such page.")


@post(WEBHOOK_PATH, media_type=MediaType.TEXT)
async def receive(request: Request[Any, Any, State]) -> Response[str]:
    """Take a delivery."""
    page: DevPage = request.app.state.page
    headers = {name.lower(): value for name, value in request.headers.items()}
    if page.deliveries.receive(headers, await request.body()):
        return Response("", status_code=204)
    return Response("The signature is wrong.", status_code=400)


@get("/{secret:str}/", media_type=MediaType.HTML)
async def show(request: Request[Any, Any, State], secret: FromPath[str]) -> Response[str]:
    """List the deliveries."""
    page: DevPage = request.app.state.page
    page.check(secret)
    rows = _rows(page.deliveries.after(0))
    nonce = secrets.token_urlsafe(16)
    policy = f"default-src 'none'; connect-src 'self'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'"
    none = "" if rows else '<p id="none">There are none yet. Send a message in the chat.</p>'
    html = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Webhooks of khala dev</title>'
        f'<style nonce="{nonce}">{STYLE}</style><main><h1>Webhooks</h1>'
        "<p>What Khala has sent since it was started, the newest first.</p>"
        f'{none}<div id="deliveries">{rows}</div></main>'
        f'<script nonce="{nonce}">{SCRIPT}</script></html>'
    )
    return Response(html, headers={"Content-Security-Policy": policy})


@get("/{secret:str}/rows", media_type=MediaType.HTML)
async def rows_after(request: Request[Any, Any, State], secret: FromPath[str], after: FromQuery[int]) -> str:
    """The deliveries after one."""
    page: DevPage = request.app.state.page
    page.check(secret)
    return _rows(page.deliveries.after(after))


@get("/{secret:str}/{target:str}")
async def sign_in(request: Request[Any, Any, State], secret: FromPath[str], target: FromPath[str]) -> Redirect:
    """Sign this browser in as the developer, and go to a page of Khala.

    The cookie is Khala's, although this server has another port: browsers do not keep cookies of ports apart.
    """
    page: DevPage = request.app.state.page
    page.check(secret)
    if target not in PAGES or page.begin_session is None:
        raise NotFoundException("There is no such page.")
    cookie = Cookie(
        key=COOKIE_NAME,
        value=await page.begin_session(),
        max_age=SESSION_SECONDS,
        path="/",
        httponly=True,
        samesite="lax",
    )
    return Redirect(page.address + PAGES[target], status_code=303, cookies=[cookie])


def _rows(deliveries: Sequence[ReceivedDelivery]) -> str:
    return "".join(map(_row, deliveries))


def _row(delivery: ReceivedDelivery) -> str:
    wrong = "" if delivery.is_valid else " <strong>The signature is wrong.</strong>"
    return (
        f'<article data-number="{delivery.number}"><h2>{escape(delivery.type)}</h2>'
        f"<p><time>{delivery.received_at:%H:%M:%S} UTC</time> <code>{escape(delivery.message_id)}</code>{wrong}</p>"
        f"<details><summary>Show the event</summary><pre>{escape(delivery.body)}</pre></details></article>"
    )


@asynccontextmanager
async def serving(page: DevPage, host: str, port: int, hosts: AllowedHosts) -> AsyncIterator[str]:
    """Serve the page while this is open, on `port` or, if that is in use, on a free one. Yields its address."""
    app = Litestar(
        [receive, show, rows_after, sign_in],
        request_max_body_size=MAX_WEBHOOK_BYTES,
        openapi_config=None,
        state=State({"page": page}, deep_copy=False),
        response_headers=HEADERS,
        logging_config=None,
    )
    config = uvicorn.Config(
        HostGuard(app, hosts),
        lifespan="off",
        http=BoundedHttpProtocol,
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=CLOSE_TIMEOUT_SECONDS,
    )
    server = UnsignalledServer(config)
    with _bound(host, port) as bound:
        async with background({"dev page": lambda: server.serve(sockets=[bound])}):
            yield socket_url(bound)


def _bound(host: str, port: int) -> Any:
    try:
        return open_listening_socket(host, port, backlog=BACKLOG)
    except (OSError, OverflowError):
        return open_listening_socket(host, 0, backlog=BACKLOG)
