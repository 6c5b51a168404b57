"""Messages for runs: the text of one, and the path from the first message to the one that is answered."""

from uuid import UUID

from khala.domain.chat import Message
from khala.domain.fold import text_of
from khala.store.postgres import rows
from khala.store.postgres.database import Driver
from khala.store.threads.reset_marks import IS_MESSAGE

PATH = f"""
    WITH RECURSIVE path AS (
        SELECT messages.*, 1 AS depth FROM messages WHERE id = $1 AND thread_id = $4 AND {IS_MESSAGE}
        UNION ALL
        SELECT messages.*, path.depth + 1
        FROM messages JOIN path ON messages.id = path.parent_id
        WHERE path.depth < $2 AND messages.thread_id IS NOT DISTINCT FROM $4
    ), sized AS (
        SELECT *, sum(octet_length(content::text)) OVER (ORDER BY depth) AS bytes FROM path
    )
    SELECT * FROM sized WHERE depth = 1 OR bytes <= $3 OR role = 'system' ORDER BY depth DESC
"""


TEXT = f"SELECT content FROM messages WHERE id = $1 AND thread_id = $2 AND role = 'user' AND {IS_MESSAGE}"


async def read_text(driver: Driver, thread_id: UUID, message_id: UUID) -> str:
    """The text of a user's message of the thread; empty without such a message."""
    return text_of(rows.content(await driver.fetchval(TEXT, message_id, thread_id)) or ())


async def read_path(driver: Driver, thread_id: UUID, leaf: UUID, *, max_messages: int, max_bytes: int) -> list[Message]:
    """The thread's messages from root to leaf, in order. Of a longer path only the newest, within both limits.

    System messages don't count towards `max_bytes`.
    """
    return [rows.message(row) for row in await driver.fetch(PATH, leaf, max_messages, max_bytes, thread_id)]
