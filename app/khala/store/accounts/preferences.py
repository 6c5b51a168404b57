"""Preferences: of accounts, and of guests by their key."""

from collections.abc import Collection, Mapping
from uuid import UUID

import msgspec

from khala.domain.access import Caller
from khala.domain.preferences import NO_PREFERENCES, Preferences
from khala.store.accounts import account_marks
from khala.store.memories.memory_settings import subject_of
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.tools import workspace_owners

READ = "SELECT instructions, model, titles FROM preferences WHERE subject_id = $1"
READ_MANY = "SELECT subject_id, instructions, model, titles FROM preferences WHERE subject_id = ANY ($1::uuid[])"
SET = """
    INSERT INTO preferences (subject_id, anon_key_hash, instructions, model, titles) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (subject_id) DO UPDATE SET instructions = excluded.instructions, model = excluded.model,
        titles = excluded.titles, changed_at = now()
"""


class PreferenceChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of preferences. Fields that are unset stay as they are; None removes a choice."""

    instructions: str | msgspec.UnsetType | None = msgspec.UNSET
    model: str | msgspec.UnsetType | None = msgspec.UNSET
    titles: bool | msgspec.UnsetType = msgspec.UNSET

    def applied_to(self, preferences: Preferences) -> Preferences:
        """The changed preferences."""
        given = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not msgspec.UNSET}
        return msgspec.structs.replace(preferences, **given)


async def read(driver: Driver, subject_id: UUID) -> Preferences:
    """The preferences of a user, or of a guest by the author id of their key."""
    row = await driver.fetchrow(READ, subject_id)
    return NO_PREFERENCES if row is None else Preferences(**row)


async def read_many(driver: Driver, subject_ids: Collection[UUID]) -> Mapping[UUID, Preferences]:
    """The preferences of those of these people who have any."""
    found = await driver.fetch(READ_MANY, list(subject_ids)) if subject_ids else ()
    return {
        row["subject_id"]: Preferences(instructions=row["instructions"], model=row["model"], titles=row["titles"])
        for row in found
    }


@retried
async def change(db: Database, caller: Caller, changes: PreferenceChanges) -> Preferences:
    """Change the caller's preferences. Raises `Unauthorized`, also if the account was deleted."""
    subject_id = subject_of(caller)
    key_hash = None if caller.user_id is not None else caller.anon_key_hash
    async with db.driver() as driver, driver.transaction():
        if caller.user_id is not None:
            await account_marks.lock_account(driver, caller.user_id)
        await workspace_owners.lock(driver, subject_id)
        changed = changes.applied_to(await read(driver, subject_id))
        await driver.execute(SET, subject_id, key_hash, changed.instructions, changed.model, changed.titles)
        return changed
