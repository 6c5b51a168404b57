"""The memories that a run may use: personal ones enter a thread that others can read only by its owner's choice."""

from collections.abc import Sequence
from uuid import UUID

from khala.domain.memories import MemorySpace
from khala.store.postgres.database import Driver

IS_PRIVATE = """
    SELECT owner_id IS NOT DISTINCT FROM $2 AND (visibility = 'private'
       AND NOT EXISTS (SELECT FROM memberships WHERE memberships.thread_id = threads.id)
       AND NOT EXISTS (SELECT FROM invitations
                       WHERE invitations.thread_id = threads.id AND invitations.declined_at IS NULL)
       AND NOT EXISTS (SELECT FROM share_links
                       WHERE share_links.thread_id = threads.id AND coalesce(expires_at > clock_timestamp(), true))
       AND NOT EXISTS (SELECT FROM ephemeral_threads WHERE ephemeral_threads.thread_id = threads.id AND NOT recalls)
       OR owner_id = $2 AND EXISTS (SELECT FROM memory_settings WHERE subject_id = threads.id AND personal))
    FROM threads WHERE id = $1 AND deleted_at IS NULL
"""
FILLED = f"""
    SELECT ({IS_PRIVATE}) AS private, ARRAY(
        SELECT space.id FROM unnest($3::uuid[]) AS space (id)
        WHERE EXISTS (SELECT FROM memories WHERE space_id = space.id AND superseded_by IS NULL)
    ) AS filled
"""


async def usable(
    driver: Driver, *, user_id: UUID | None, thread_id: UUID | None, agent: str | None = None
) -> Sequence[MemorySpace]:
    """The memories that may be used for this user (None for a guest) in this thread, those to store into first.

    Outside of a thread, those of the user. In a thread that only the user can read, also those of the thread. In
    all other threads, and in temporary ones, only those of the thread, unless the user owns it and has switched
    personal memories on there.
    """
    if thread_id is None:
        return [] if user_id is None else personal(user_id, agent)
    of_thread = MemorySpace(scope="thread", owner_id=thread_id)
    if not await driver.fetchval(IS_PRIVATE, thread_id, user_id):
        return [of_thread]
    return [*personal(user_id or thread_id, agent), of_thread]


async def usable_if_any(
    driver: Driver, *, user_id: UUID | None, thread_id: UUID, agent: str | None = None
) -> Sequence[MemorySpace]:
    """As `usable` in a thread; empty if no memory is in any of these spaces. One statement."""
    of_thread = MemorySpace(scope="thread", owner_id=thread_id)
    own = personal(user_id or thread_id, agent)
    spaces = {space.id: space for space in [*own, of_thread]}
    row = await driver.fetchrow(FILLED, thread_id, user_id, list(spaces))
    assert row is not None
    found = list(spaces.values()) if row["private"] else [of_thread]
    return found if any(spaces[space_id] in found for space_id in row["filled"]) else []


def personal(owner_id: UUID, agent: str | None) -> Sequence[MemorySpace]:
    """The memories of a user, or of a guest under their thread's id; and those of one agent for them."""
    spaces = [MemorySpace(scope="user", owner_id=owner_id)]
    if agent is not None:
        spaces.append(MemorySpace(scope="agent", owner_id=owner_id, agent=agent))
    return spaces
