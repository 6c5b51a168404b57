"""Folders of threads over REST: of the account, or of the guest's key."""

from typing import Annotated

import msgspec
from litestar import Controller, delete, get, patch
from litestar.di import NamedDependency
from litestar.params import BodyKwarg, QueryParameter
from msgspec import Meta

from khala.api.accounts.authentication import BY_ACCOUNT_OR_ANON_KEY
from khala.api.agents.catalog import find_agent
from khala.api.context import Context
from khala.api.http.problem_details import documented_errors
from khala.api.openapi.document import example
from khala.api.threads.types import MAX_LABEL_CHARACTERS
from khala.api.types import ApiStruct, Items
from khala.api.validation import check_text
from khala.domain.access import Caller
from khala.domain.chat import MAX_AGENT_NAME_CHARACTERS, FolderSettings, ThreadFolder
from khala.domain.errors import InvalidInput
from khala.domain.names import ONE_LINE
from khala.domain.preferences import MAX_FOLDER_INSTRUCTION_CHARACTERS
from khala.store.memories.memory_settings import subject_of
from khala.store.threads import thread_folders
from khala.store.threads.thread_folders import FolderChanges

DENIED = ("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type")
AgentName = Annotated[str, Meta(max_length=MAX_AGENT_NAME_CHARACTERS)]
FolderName = Annotated[
    str,
    QueryParameter(
        min_length=1, max_length=MAX_LABEL_CHARACTERS, pattern=ONE_LINE, description="The name of the folder."
    ),
]


class FolderBody(ApiStruct, frozen=True, kw_only=True):
    """Changes of a folder. Fields that are absent stay as they are; `null` removes a setting."""

    name: Annotated[str, Meta(max_length=MAX_LABEL_CHARACTERS, pattern=ONE_LINE)] | msgspec.UnsetType = msgspec.UNSET
    instructions: Annotated[str, Meta(max_length=MAX_FOLDER_INSTRUCTION_CHARACTERS)] | msgspec.UnsetType | None = (
        msgspec.UNSET
    )
    agent: AgentName | msgspec.UnsetType | None = msgspec.UNSET


class FolderController(Controller):
    """Folders of threads, with their instructions and agents."""

    path = "/me"
    tags = ("Threads",)
    security = BY_ACCOUNT_OR_ANON_KEY

    @get(
        "/folders",
        operation_id="listFolders",
        summary="List the folders of threads",
        response_description="The folders, by name.",
        responses=documented_errors(*DENIED),
    )
    async def page(self, context: NamedDependency[Context], caller: NamedDependency[Caller]) -> Items[ThreadFolder]:
        """List the folders of the account, or of the holder of the anonymous key."""
        subject_of(caller)
        return Items(items=await thread_folders.read_all(context.db, caller))

    @get(
        "/folder",
        operation_id="readFolder",
        summary="Read a folder of threads",
        response_description="The folder.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def read(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], name: FolderName
    ) -> FolderSettings:
        """Read a folder of the account, or of the holder of the anonymous key."""
        subject_of(caller)
        return await thread_folders.read(context.db, caller, check_text(name, "name"))

    @patch(
        "/folder",
        operation_id="changeFolder",
        summary="Change or make a folder of threads",
        opt={"scope": "account"},
        response_description="The changed folder.",
        responses=documented_errors(*DENIED, *BODY, "not_found", "conflict"),
    )
    async def change(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        name: FolderName,
        data: Annotated[FolderBody, BodyKwarg(examples=example("Instructions", instructions="We travel by train."))],
    ) -> FolderSettings:
        """Change a folder, or make it if there is none of this name. A new name is that of all threads in it, too."""
        subject_of(caller)
        if isinstance(data.agent, str) and await find_agent(context, caller, data.agent) is None:
            raise InvalidInput("There is no such agent.", path="agent")
        instructions = data.instructions
        if isinstance(instructions, str):
            instructions = check_text(instructions, "instructions").strip() or None
        changes = FolderChanges(name=data.name, instructions=instructions, agent=data.agent)
        return await thread_folders.change(context.db, caller, check_text(name, "name"), changes)

    @delete(
        "/folder",
        operation_id="deleteFolder",
        summary="Delete a folder of threads",
        opt={"scope": "account"},
        response_description="The folder is deleted.",
        responses=documented_errors(*DENIED),
    )
    async def remove(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], name: FolderName
    ) -> None:
        """Delete a folder and its settings, if there is one. Its threads stay, in no folder."""
        subject_of(caller)
        await thread_folders.remove(context.db, caller, check_text(name, "name"))
