"""Checks of the environment: blobs, files, sandbox, disk, NATS and models."""

import asyncio
import shutil
from pathlib import Path

from khala.blobs.blob_service import BlobService
from khala.blobs.store_url import FOLDER
from khala.doctor.findings import Finding, bad, ok
from khala.domain.errors import Unavailable
from khala.domain.redaction import redacted
from khala.models.embeddings.factory import EmbeddingModelError, open_embedder
from khala.models.model_names import BadModelError, ModelRef
from khala.models.port import ModelFailed, Prompt, PromptTurn
from khala.models.providers import Providers
from khala.settings import Settings
from khala.tools.sandbox import Sandbox, missing_requirement

MIN_FREE_BYTES = 1 << 30
MODEL_TIMEOUT_SECONDS = 60.0
PROBE = Prompt(system="", turns=(PromptTurn(role="user", text="Answer with the one word: well"),), max_output_tokens=64)
"""The prompt that tests a model. Some models refuse a smaller limit of tokens."""


async def sandbox() -> Finding:
    """The languages of code that the sandbox runs."""
    why_not = await asyncio.to_thread(missing_requirement)
    found = None if why_not else await Sandbox.find()
    if found is None:
        return ok("sandbox", f"none on this machine, so no code is run: {why_not}")
    limits = (
        "in control groups" if found.groups else "without control groups: see docs/sandbox.md, what the kernel holds"
    )
    return ok("sandbox", f"runs {', '.join(sorted(found.languages))}, {limits}")


async def blobs(settings: Settings, blob_service: BlobService) -> Finding:
    """Blobs can be written and read."""
    place = settings.blobs.url or str(settings.process.home / FOLDER)
    try:
        await blob_service.check()
    except Unavailable as error:
        return bad("blobs", f"{place} cannot be written and read: {error.__cause__}")
    return ok("blobs", f"stored in {place}" + ("" if settings.blobs.url else ", which all processes must share"))


async def files(settings: Settings, blob_service: BlobService) -> Finding:
    """Temporary files can be written: uploads and outputs of tools before they are blobs."""
    home = settings.process.home
    if await blob_service.has_disk_space():
        return ok("files", f"temporary files can be written under {home}")
    return bad("files", f"nothing can be written under {home}: free disk space, or make its folders writable")


async def wake(settings: Settings) -> Finding:
    """The NATS server answers, where one is set."""
    if settings.database.wake_url is None:
        return ok("wake", "by Postgres; KHALA_WAKE_URL is not set")
    # Its library is installed with khala-server[nats] only.
    from khala.live.nats_bus import NatsBus

    try:
        await NatsBus(settings.database.wake_url).check()
    except ConnectionError as error:
        return bad("wake", f"{error}: no process starts without it; running processes wake each other by Postgres")
    return ok("wake", f"by NATS at {settings.database.wake_url}")


def disks(settings: Settings, *, least: int = MIN_FREE_BYTES) -> list[Finding]:
    """Free disk space where Khala writes. `least`: bytes that should be free."""
    folder = next(path for path in (settings.process.home, *settings.process.home.parents) if path.exists())
    return [_disk(folder, least)]


def _disk(folder: Path, least: int) -> Finding:
    free = shutil.disk_usage(folder).free
    says = f"{free / 2**30:.1f} GiB free under {folder}"
    if free < least:
        return bad("disk", f"{says}, under {least / 2**30:.0f} GiB: free disk space before Postgres and uploads fail")
    return ok("disk", says)


async def models(settings: Settings, *, call: bool) -> list[Finding]:
    """Each configured model can be opened, and answers if `call` is set."""
    providers = Providers(settings.provider_config)
    try:
        return [await _model(providers, ref, call=call) for ref in settings.model_chain]
    finally:
        await providers.aclose()


async def embeddings(settings: Settings, *, call: bool) -> Finding:
    """The embedding model can be opened, and answers if `call` is set."""
    ref = settings.embeddings.model
    if ref is None:
        return ok(
            "embeddings", "none: texts are found by their words only; set KHALA_EMBEDDINGS to find them by meaning"
        )
    what = f"embeddings {ref}"
    try:
        embedder = await asyncio.to_thread(open_embedder, ref, settings.embedding_access)
    except EmbeddingModelError as error:
        return bad(what, str(error))
    try:
        if not call:
            return ok(what, "configured; --call calls it, too")
        result = await embedder.documents(["A question"])
    except ModelFailed as error:
        return bad(what, redacted(f"{error.code}: {error.message} ({error.__cause__ or 'no details'})"))
    finally:
        await embedder.aclose()
    return ok(what, f"answered with {len(result.vectors[0])} dimensions")


async def _model(providers: Providers, ref: ModelRef, *, call: bool) -> Finding:
    what = f"model {ref}"
    try:
        model = providers.open(ref)
    except BadModelError as error:
        return bad(what, str(error))
    if not call:
        return ok(what, "configured; --call calls it, too")
    began = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(MODEL_TIMEOUT_SECONDS), model.stream(PROBE) as events:
            async for _ in events:
                pass
    except ModelFailed as error:
        # A provider's message may repeat what it was sent.
        return bad(what, redacted(f"{error.code}: {error.message} ({error.__cause__ or 'no details'})"))
    except TimeoutError:
        advice = "see the provider's status page, or choose another model"
        return bad(what, f"no complete answer in {MODEL_TIMEOUT_SECONDS:.0f} s: {advice}")
    return ok(what, f"answered in {asyncio.get_running_loop().time() - began:.1f} s")
