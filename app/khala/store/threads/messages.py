"""Reads messages by their ids: the text of one, several, and the path from the first message to another."""

from collections.abc import Sequence
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


THESE = f"SELECT * FROM messages WHERE id = ANY($1::uuid[]) AND thread_id = $2 AND {IS_MESSAGE}"
EARLIER_ANSWERS = f"""
    SELECT answer.* FROM messages AS answer JOIN messages ON messages.thread_id = answer.thread_id
    WHERE messages.id = $1 AND messages.thread_id = $2 AND {IS_MESSAGE}
      AND answer.thread_id = $2 AND answer.role = 'assistant'
      AND answer.position BETWEEN messages.position - 50 AND messages.position - 1
      AND answer.parent_id IS NOT DISTINCT FROM messages.parent_id
    ORDER BY answer.position DESC
"""
LATER_ANSWERS = f"""
    SELECT answer.* FROM messages AS answer JOIN messages ON messages.thread_id = answer.thread_id
    WHERE messages.id = $1 AND messages.thread_id = $2 AND {IS_MESSAGE}
      AND answer.thread_id = $2 AND answer.role = 'assistant'
      AND answer.position BETWEEN messages.position + 1 AND messages.position + 50
      AND answer.parent_id IS NOT DISTINCT FROM messages.parent_id
    ORDER BY answer.position
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


async def read_messages(driver: Driver, thread_id: UUID, message_ids: Sequence[UUID]) -> dict[UUID, Message]:
    """Those of these messages that the thread has, by id."""
    found = await driver.fetch(THESE, list(message_ids), thread_id)
    return {row["id"]: rows.message(row) for row in found}


async def read_earlier_answers(driver: Driver, message: Message) -> list[Message]:
    """The answers with the same parent among the 50 messages before this one, the newest first."""
    found = await driver.fetch(EARLIER_ANSWERS, message.id, message.thread_id)
    return [rows.message(row) for row in found]


async def read_later_answers(driver: Driver, message: Message) -> list[Message]:
    """The answers with the same parent among the 50 messages after this one, the oldest first."""
    found = await driver.fetch(LATER_ANSWERS, message.id, message.thread_id)
    return [rows.message(row) for row in found]
