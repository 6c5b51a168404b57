"""The composition root of `khala dev`: a server on the project's own database, whose agents are loaded anew."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import msgspec

from khala import main as composition
from khala.dev import dev_account, dev_page, example_threads
from khala.dev.app_reloader import AppReloader, described, keep_bytecode_unwritten
from khala.dev.delivery_log import DeliveryLog
from khala.dev.dev_page import WEBHOOK_PATH, DevPage
from khala.domain.access import Caller
from khala.lifecycle import background, stopped_by_signal
from khala.main import Running
from khala.settings import Settings
from khala.store.accounts import sessions

STOP_TIMEOUT_SECONDS = 4.5
"""Time after Ctrl-C at which the process ends in any case. The next start goes on with its runs."""
BROWSER = "khala dev"

Report = Callable[[str], None]


class DevOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the command: the project's folder, and whether to create example threads."""

    folder: Path
    seeds: bool = False


async def serve(settings: Settings, options: DevOptions, report: Report) -> None:
    """Serve until Ctrl-C or SIGTERM. `report` gets each line for the terminal."""
    stopped = stopped_by_signal()
    ending = asyncio.create_task(_end_in_time(stopped))
    keep_bytecode_unwritten()
    reloader = AppReloader(settings.runs.app, options.folder, report)
    await reloader.load()
    async with _running(settings, reloader, report) as (running, address, page, token):
        for line in summary(settings, running.address, address, page, token, reloader, options.folder):
            report(line)
        if options.seeds:
            report(await _seed(running.address, token, reloader))
        stop = asyncio.create_task(stopped.wait())
        await asyncio.wait({stop, running.serving}, return_when=asyncio.FIRST_COMPLETED)
        if running.serving.done():
            running.serving.result()
            raise RuntimeError("The server ended by itself.")
        report("Stopping.")
    ending.cancel()


@asynccontextmanager
async def _running(
    settings: Settings, reloader: AppReloader, report: Report
) -> AsyncIterator[tuple[Running, str, DevPage, str]]:
    """The server, the address of its development page, that page, and the developer's token."""
    home = settings.process.home
    state = dev_account.read_state(home)
    deliveries = DeliveryLog(report)
    page = DevPage(state.page_secret, deliveries)
    host = settings.server.host
    port = settings.server.port + 1 if settings.server.port else 0
    async with dev_page.serving(page, host, port, settings.server.allowed_hosts) as address:
        parts = urlsplit(address)
        endpoint = ip_address(parts.hostname or host), parts.port or 0
        async with composition.running(
            settings, environment=os.environ, app=reloader.app, webhook_endpoints=[endpoint]
        ) as running:
            db = running.components.db
            user_id = await dev_account.prepare_account(db, state)
            webhook = await dev_account.prepare_webhook(db, state, address + WEBHOOK_PATH)
            dev_account.write_state(home, state)
            deliveries.secrets = tuple(webhook.secrets)
            page.address = running.address
            page.begin_session = lambda: sessions.begin(db, user_id, Caller(), user_agent=BROWSER)
            async with background({"reload": lambda: reloader.run(running.components.tool_registry)}):
                yield running, address, page, state.token


def summary(
    settings: Settings, server: str, page_address: str, page: DevPage, token: str, reloader: AppReloader, folder: Path
) -> list[str]:
    """The addresses and settings that a developer needs to know after the start, as lines."""
    own = f"{page_address}/{page.secret}"
    modules = ", ".join(settings.runs.app) or "none: set KHALA_APP, or write agents.py, and start again"
    return [
        f"Khala is at {server}",
        "For development only: whoever has an address below is an administrator.",
        "",
        f"  chat      {own}/chat",
        f"  console   {own}/console",
        f"  API       {server}/api  with the token {token}",
        f"  webhooks  {own}/  and in this terminal",
        "  mail      Khala sends none",
        f"  database  {settings.process.home}",
        f"  models    {', '.join(map(str, settings.model_chain))}",
        f"  modules   {modules}",
        f"            {described(reloader.app)}",
        f"  watching  {folder}",
        "",
        "Press Ctrl-C to stop.",
    ]


async def _seed(address: str, token: str, reloader: AppReloader) -> str:
    try:
        count = await example_threads.seed(address, token, reloader.app)
    except httpx.HTTPError as error:
        return f"The example threads could not be created: {error}"
    return f"There are {count} example threads."


async def _end_in_time(stopped: asyncio.Event) -> None:
    """End this process soon after the signal, even if a function of the project still runs in a thread."""
    await stopped.wait()

    timer = threading.Timer(STOP_TIMEOUT_SECONDS, end_now)
    timer.daemon = True
    timer.start()


def end_now() -> None:
    """End this process, without waiting for threads and for the collection of its objects, which takes a second."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
