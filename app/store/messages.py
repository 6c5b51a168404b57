"""Messages as a run's prompt needs them: the path from the first message to the one that is answered."""

from uuid import UUID

from app.domain.chat import Message
from app.store import rows
from app.store.db import Driver

PATH = """
    WITH RECURSIVE path AS (
        SELECT messages.*, 1 AS depth FROM messages WHERE id = $1
        UNION ALL
        SELECT messages.*, path.depth + 1 FROM messages JOIN path ON messages.id = path.parent_id
        WHERE path.depth < $2
    )
    SELECT * FROM path ORDER BY depth DESC
"""


async def path(driver: Driver, leaf: UUID, *, most: int) -> list[Message]:
    """The messages from root to leaf in order; of a longer path the newest `most`."""
    return [rows.message(row) for row in await driver.fetch(PATH, leaf, most)]
