"""Preferences over REST: of the account, or of the guest's key."""

from typing import Annotated

import msgspec
from litestar import Controller, get, patch
from litestar.di import NamedDependency
from litestar.params import BodyKwarg
from msgspec import Meta

from khala.api.accounts.authentication import BY_ACCOUNT_OR_ANON_KEY
from khala.api.context import Context
from khala.api.http.problem_details import documented_errors
from khala.api.openapi.document import example
from khala.api.types import ApiStruct
from khala.api.validation import check_text
from khala.domain.access import Caller
from khala.domain.errors import InvalidInput
from khala.domain.preferences import MAX_INSTRUCTION_CHARACTERS, Preferences
from khala.store.accounts import preferences
from khala.store.accounts.preferences import PreferenceChanges
from khala.store.memories.memory_settings import subject_of

DENIED = ("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type")


class PreferencesBody(ApiStruct, frozen=True, kw_only=True):
    """Changes of preferences. Fields that are absent stay as they are; `null` removes a choice."""

    instructions: Annotated[str, Meta(max_length=MAX_INSTRUCTION_CHARACTERS)] | msgspec.UnsetType | None = msgspec.UNSET
    model: Annotated[str, Meta(max_length=200)] | msgspec.UnsetType | None = msgspec.UNSET
    titles: bool | msgspec.UnsetType = msgspec.UNSET


class PreferencesController(Controller):
    """Preferences of a person in all their chats."""

    path = "/me/preferences"
    tags = ("Accounts",)
    security = BY_ACCOUNT_OR_ANON_KEY

    @get(
        "/",
        operation_id="readPreferences",
        summary="Read the preferences",
        response_description="The preferences.",
        responses=documented_errors(*DENIED),
    )
    async def read(self, context: NamedDependency[Context], caller: NamedDependency[Caller]) -> Preferences:
        """Read what this account, or the holder of this anonymous key, prefers in all chats."""
        subject_id = subject_of(caller)
        async with context.db.driver() as driver:
            return await preferences.read(driver, subject_id)

    @patch(
        "/",
        operation_id="changePreferences",
        summary="Change the preferences",
        opt={"scope": "account"},
        response_description="The changed preferences.",
        responses=documented_errors(*DENIED, *BODY),
    )
    async def change(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        data: Annotated[PreferencesBody, BodyKwarg(examples=example("Instructions", instructions="Answer briefly."))],
    ) -> Preferences:
        """Change the preferences of the account, or of the anonymous key for all threads that it opens."""
        if isinstance(data.model, str) and not context.models.is_allowed(data.model):
            raise InvalidInput("This model is not offered by this server.", path="model")
        instructions = data.instructions
        if isinstance(instructions, str):
            instructions = check_text(instructions, "instructions").strip() or None
        changes = PreferenceChanges(instructions=instructions, model=data.model, titles=data.titles)
        return await preferences.change(context.db, caller, changes)
