"""The doctor: checks what Khala needs and says what to do."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable

import msgspec

from app.blobs.settings import FOLDER
from app.blobs.vault import Vault
from app.domain.errors import Unavailable
from app.live.listener import Listener
from app.models.catalog import BadModel
from app.models.providers import Providers
from app.settings import Settings
from app.store import migrate
from app.store.db import EVERYTHING, Database
from app.tools.sandbox import Sandbox, missing

OLDEST_POSTGRES = 150_000
LEAST_FREE = 1 << 30
"""Bytes of free disk under which the doctor warns."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What was checked, whether it is well, and what there is to say."""

    what: str
    well: bool
    says: str


async def examine(settings: Settings, db: Database, vault: Vault) -> list[Finding]:
    """All findings. A check that fails is a finding, too."""
    checks: dict[str, Callable[[], Awaitable[Finding]]] = {
        "database": lambda: _postgres(db),
        "pgvector": lambda: _pgvector(db),
        "schema": lambda: _schema(db),
        "notify": lambda: _notify(db),
        "blobs": lambda: _blobs(settings, vault),
        "sandbox": _sandbox,
    }
    found = [await _checked(what, check) for what, check in checks.items()]
    return [*found, *_models(settings), _disk(settings)]


async def _checked(what: str, check: Callable[[], Awaitable[Finding]]) -> Finding:
    try:
        return await check()
    except Exception as error:  # noqa: BLE001  # whatever a check trips over is what the doctor is asked about
        return Finding(what=what, well=False, says=f"{error} ({error.__cause__ or type(error).__name__})")


async def _postgres(db: Database) -> Finding:
    async with db.driver() as driver:
        number = int(await driver.fetchval("SHOW server_version_num"))
        name = await driver.fetchval("SHOW server_version")
    return Finding(what="database", well=number >= OLDEST_POSTGRES, says=f"Postgres {name}; 15 or newer is needed")


async def _pgvector(db: Database) -> Finding:
    query = "SELECT default_version FROM pg_available_extensions WHERE name = 'vector'"
    async with db.driver() as driver:
        found = await driver.fetchval(query)
    says = f"{found}" if found else "not there: install pgvector for this Postgres"
    return Finding(what="pgvector", well=found is not None, says=says)


async def _schema(db: Database) -> Finding:
    at, head = await migrate.current(db), migrate.head()
    if at != head:
        return Finding(what="schema", well=False, says=f"at {at}, should be at {head}: run `khala migrate`")
    differences = await migrate.differences(db)
    return Finding(
        what="schema", well=not differences, says=f"at {at}" + "".join(f"; differs: {one}" for one in differences)
    )


async def _notify(db: Database) -> Finding:
    channel, heard = "khala_doctor", {EVERYTHING: asyncio.Event(), "now": asyncio.Event()}
    listener = Listener(db.url, {channel: lambda payload: heard[payload].set()})
    listening = asyncio.create_task(listener.run())
    try:
        async with asyncio.timeout(5):
            await heard[EVERYTHING].wait()
            async with db.driver() as driver:
                began = asyncio.get_running_loop().time()
                await driver.execute("SELECT pg_notify($1, 'now')", channel)
                await heard["now"].wait()
    except TimeoutError:
        says = "no notification in 5 s: does a pooler stand between? LISTEN needs a direct URL"
        return Finding(what="notify", well=False, says=says)
    finally:
        listening.cancel()
    return Finding(
        what="notify",
        well=True,
        says=f"{(asyncio.get_running_loop().time() - began) * 1000:.1f} ms from NOTIFY to LISTEN",
    )


async def _sandbox() -> Finding:
    why_not = await asyncio.to_thread(missing)
    found = None if why_not else await Sandbox.find()
    if found is None:
        return Finding(what="sandbox", well=True, says=f"none here, so no code is run: {why_not}")
    return Finding(what="sandbox", well=True, says=f"runs {', '.join(sorted(found.languages))}")


async def _blobs(settings: Settings, vault: Vault) -> Finding:
    place = settings.blob_url or str(settings.home / FOLDER)
    try:
        await vault.check()
    except Unavailable as error:
        return Finding(what="blobs", well=False, says=f"{place} can't be written and read: {error.__cause__}")
    return Finding(what="blobs", well=True, says=f"kept in {place}")


def _models(settings: Settings) -> list[Finding]:
    providers = Providers(settings.providers)
    found = []
    for ref in settings.models:
        try:
            providers.open(ref)
            found.append(Finding(what=f"model {ref}", well=True, says="set up; not called"))
        except BadModel as error:
            found.append(Finding(what=f"model {ref}", well=False, says=str(error)))
    return found


def _disk(settings: Settings) -> Finding:
    there = next(path for path in (settings.home, *settings.home.parents) if path.exists())
    free = shutil.disk_usage(there).free
    return Finding(what="disk", well=free > LEAST_FREE, says=f"{free / 2**30:.1f} GiB free under {there}")
