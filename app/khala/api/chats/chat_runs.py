"""Starts runs for chat clients: threads of chats, and the options that a request has."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from khala.api.agents.catalog import choose_agent
from khala.api.chats.chat_ids import as_uuid, thread_id_of
from khala.api.context import Context
from khala.api.http import strict_fields
from khala.api.threads.run_options import check_options
from khala.domain import unknown_fields
from khala.domain.access import Action, Caller, validated_anon_key
from khala.domain.agents import AUTO
from khala.domain.chat import RunOptions
from khala.domain.errors import InvalidInput, ThreadNotFound, Unauthorized
from khala.store.runs import run_lookups
from khala.store.runs.run_lookups import FoundRun
from khala.store.sharing import access
from khala.store.threads import threads

MAX_TITLE_CHARACTERS = 80


async def create_thread(context: Context, caller: Caller, chat_id: str, text: str, anon_key: str | None) -> None:
    """Create the thread of a chat, with the beginning of its first message as the title.

    Raises `Unauthorized` for a caller without an account or a key of their own, and `InvalidInput` for a chat id that
    may be another caller's thread.
    """
    if caller.user_id is None:
        if anon_key is None:
            raise Unauthorized("Sign in, or send a key of your own as X-Anon-Key.")
        validated_anon_key(anon_key)
    title = " ".join(text[: 4 * MAX_TITLE_CHARACTERS].split())[:MAX_TITLE_CHARACTERS] or None
    # Without a welcome: the client would not show it, and the model would answer after it.
    thread_id, is_named = thread_id_of(chat_id, caller), as_uuid(chat_id) is None
    await threads.create(context.db, thread_id, caller, title=title, welcome="", reserved=is_named)


async def checked_options(
    context: Context, caller: Caller, given: Mapping[str, Any], text: str, thread_id: UUID
) -> RunOptions:
    """Return the options of a run that answers the text, with the agent chosen. Raises `InvalidInput`.

    The caller may send in the thread.
    """
    checked = await check_options(read_options(given), context, caller)
    if checked.agent != AUTO:
        return checked
    return await choose_agent(context, caller, checked, text, caller.user_id or thread_id)


def read_options(given: Mapping[str, Any]) -> RunOptions:
    """Return the run's options. A new message ends the answer that is being written, unless `ifBusy` says otherwise.

    `stop()` of the AI SDK does not reach the server, so the answer before may still be written. Raises `InvalidInput`.
    """
    strict_fields.refuse(
        msgspec.structs.replace(field, path=f"options.{field.path}") for field in unknown_fields.find(given, RunOptions)
    )
    try:
        return msgspec.convert({"ifBusy": "interrupt", **given}, RunOptions)
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at `$")
        raise InvalidInput(f"{problem.rstrip('.')}.", path=f"options{where.rstrip('`')}") from error


async def find_active_run(context: Context, caller: Caller, thread_id: UUID, action: Action) -> FoundRun | None:
    """Return the thread's newest run that has not ended. Raises `Forbidden` if the caller may not do this."""
    async with context.db.driver() as driver:
        try:
            await access.authorize(driver, thread_id, caller, action)
        except ThreadNotFound:
            return None
        return await run_lookups.newest_active(driver, thread_id)
