"""What else Khala needs: a place for blobs, a sandbox, disk, and models."""

import asyncio
import shutil
from pathlib import Path

from khala.blobs.blob_service import BlobService
from khala.blobs.store_url import FOLDER
from khala.doctor.findings import Finding, bad, ok
from khala.domain.errors import Unavailable
from khala.domain.redaction import redacted
from khala.models.model_names import BadModelError, ModelRef
from khala.models.port import ModelFailed, Prompt, Turn
from khala.models.providers import Providers
from khala.settings import Settings
from khala.tools.sandbox import Sandbox, missing_requirement

LEAST_FREE = 1 << 30
"""Bytes of free disk under which the doctor warns."""
PATIENCE = 60.0
"""Seconds that a model has to answer."""
PROBE = Prompt(system="", turns=(Turn(role="user", text="Answer with the one word: well"),), max_output_tokens=64)
"""What a model is asked to see whether it answers; some refuse to be given less room."""


async def sandbox() -> Finding:
    """Which languages agents' code may be in."""
    why_not = await asyncio.to_thread(missing_requirement)
    found = None if why_not else await Sandbox.find()
    if found is None:
        return ok("sandbox", f"none here, so no code is run: {why_not}")
    counted = (
        "in control groups" if found.groups else "without control groups: see docs/sandbox.md, what the kernel holds"
    )
    return ok("sandbox", f"runs {', '.join(sorted(found.languages))}, {counted}")


async def blobs(settings: Settings, blob_service: BlobService) -> Finding:
    """Bytes can be kept and read."""
    place = settings.blobs.url or str(settings.process.home / FOLDER)
    try:
        await blob_service.check()
    except Unavailable as error:
        return bad("blobs", f"{place} can't be written and read: {error.__cause__}")
    return ok("blobs", f"kept in {place}" + ("" if settings.blobs.url else ", which all processes must share"))


async def files(settings: Settings, blob_service: BlobService) -> Finding:
    """Uploads and outputs of tools can be kept until they are blobs."""
    home = settings.process.home
    if await blob_service.has_disk_space():
        return ok("files", f"temporary ones can be written under {home}")
    return bad("files", f"nothing can be written under {home}: make room there, or its folders writable")


async def wake(settings: Settings) -> Finding:
    """Processes reach each other beside Postgres, where that is asked for."""
    if settings.database.wake_url is None:
        return ok("wake", "by Postgres; KHALA_WAKE_URL is not set")
    # What it needs is installed only with khala[nats].
    from khala.live.nats_bus import NatsBus

    try:
        await NatsBus(settings.database.wake_url).check()
    except ConnectionError as error:
        return bad("wake", f"{error}: no process starts without it; those that run wake each other by Postgres")
    return ok("wake", f"by NATS at {settings.database.wake_url}")


def disks(settings: Settings, *, least: int = LEAST_FREE) -> list[Finding]:
    """Room where Khala writes. `least`: bytes that should be free."""
    there = next(path for path in (settings.process.home, *settings.process.home.parents) if path.exists())
    return [_disk(there, least)]


def _disk(there: Path, least: int) -> Finding:
    free = shutil.disk_usage(there).free
    says = f"{free / 2**30:.1f} GiB free under {there}"
    if free < least:
        return bad("disk", f"{says}, under {least / 2**30:.0f} GiB: make room, before Postgres and uploads fail")
    return ok("disk", says)


async def models(settings: Settings, *, call: bool) -> list[Finding]:
    """Each configured model is set up, and if it is called, answers."""
    providers = Providers(settings.provider_config)
    try:
        return [await _model(providers, ref, call=call) for ref in settings.model_chain]
    finally:
        await providers.aclose()


async def _model(providers: Providers, ref: ModelRef, *, call: bool) -> Finding:
    what = f"model {ref}"
    try:
        model = providers.open(ref)
    except BadModelError as error:
        return bad(what, str(error))
    if not call:
        return ok(what, "set up; not called (--call does)")
    began = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(PATIENCE), model.stream(PROBE) as events:
            async for _ in events:
                pass
    except ModelFailed as error:
        # What a provider says may repeat what it was sent.
        return bad(what, redacted(f"{error.code}: {error.message} ({error.__cause__ or 'no more is known'})"))
    except TimeoutError:
        return bad(what, f"no whole answer in {PATIENCE:.0f} s: see the provider's status page, or name another model")
    return ok(what, f"answered in {asyncio.get_running_loop().time() - began:.1f} s")
