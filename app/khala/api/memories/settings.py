"""Settings of memory over REST: of the account or the guest's key, and of threads."""

from typing import Annotated

import msgspec
from litestar import Controller, get, patch
from litestar.di import NamedDependency
from litestar.params import BodyKwarg

from khala.api.accounts.authentication import BY_ACCOUNT_OR_ANON_KEY, BY_KEY
from khala.api.context import Context
from khala.api.http.path_parameters import ThreadId
from khala.api.http.problem_details import documented_errors
from khala.api.memories.memories import BODY, DENIED, IN_THREAD
from khala.api.memories.types import MemorySettingsBody, ThreadMemoryBody
from khala.api.openapi.document import example
from khala.domain.access import Caller
from khala.domain.memories import Extraction, MemorySettings, ThreadMemorySettings
from khala.store.memories import memory_settings
from khala.store.memories.memory_settings import MemorySettingChanges


class MemorySettingsController(Controller):
    """Settings of recall and extraction."""

    path = "/"
    tags = ("Memories",)

    @get(
        "/me/memory",
        operation_id="readMemorySettings",
        summary="Read the memory settings",
        security=BY_ACCOUNT_OR_ANON_KEY,
        response_description="The settings.",
        responses=documented_errors(*DENIED),
    )
    async def read(self, context: NamedDependency[Context], caller: NamedDependency[Caller]) -> MemorySettings:
        """Read whether memories are recalled before runs of this account or anonymous key, and extracted after them."""
        return await _read(context, caller)

    @patch(
        "/me/memory",
        operation_id="changeMemorySettings",
        summary="Change the memory settings",
        opt={"scope": "account"},
        security=BY_ACCOUNT_OR_ANON_KEY,
        response_description="The changed settings.",
        responses=documented_errors(*DENIED, *BODY),
    )
    async def change(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        data: Annotated[MemorySettingsBody, BodyKwarg(examples=example("Ask before storing", extraction="ask"))],
    ) -> MemorySettings:
        """Change the settings of the account, or of the anonymous key for all threads that it opens."""
        recall = None if data.recall is msgspec.UNSET else data.recall
        extraction: Extraction | None = None if data.extraction is msgspec.UNSET else data.extraction
        changes = MemorySettingChanges(recall=recall, extraction=extraction)
        await memory_settings.change(context.db, caller, changes)
        return await _read(context, caller)

    @get(
        "/threads/{thread_id:uuid}/memory",
        operation_id="readThreadMemorySettings",
        summary="Read the thread's memory settings",
        security=BY_KEY,
        response_description="The settings.",
        responses=documented_errors(*IN_THREAD),
    )
    async def of_thread(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId
    ) -> ThreadMemorySettings:
        """Read whether runs of the thread's owner use the owner's memories, although others can read the thread."""
        async with context.db.driver() as driver:
            return await memory_settings.read_of_thread(driver, thread_id, caller)

    @patch(
        "/threads/{thread_id:uuid}/memory",
        operation_id="changeThreadMemorySettings",
        summary="Change the thread's memory settings",
        opt={"scope": "account"},
        security=BY_KEY,
        response_description="The changed settings.",
        responses=documented_errors(*IN_THREAD, *BODY),
    )
    async def change_of_thread(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        data: Annotated[ThreadMemoryBody, BodyKwarg(examples=example("Use my memories here, too", personal=True))],
    ) -> ThreadMemorySettings:
        """Choose whether the owner's memories are used in a thread that others can read. Only the owner may."""
        await memory_settings.set_personal(context.db, thread_id, caller, personal=data.personal)
        return ThreadMemorySettings(personal=data.personal)


async def _read(context: Context, caller: Caller) -> MemorySettings:
    subject_id = memory_settings.subject_of(caller)
    async with context.db.driver() as driver:
        return await memory_settings.read(driver, subject_id, default=context.memories.extraction)
