"""Detail tokens: each gives the details of one tool call to callers who may read the thread, until it expires."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from khala.domain import ids
from khala.domain.access import Action, Caller, key_hash
from khala.domain.errors import NotFound
from khala.domain.fold import ToolBlock, fold
from khala.domain.parts import read
from khala.store.postgres.database import Driver
from khala.store.runs import packed_parts
from khala.store.sharing import access
from khala.store.threads.reset_marks import IS_RUN

INSERT = """
    INSERT INTO detail_tokens (token_hash, thread_id, run_id, tool_call_id, expires_at)
    SELECT key.token_hash, $1, $2, key.tool_call_id, $5
    FROM unnest($3::bytea[], $4::text[]) AS key (token_hash, tool_call_id)
"""
FIND = f"""
    SELECT detail_tokens.thread_id, run_id, tool_call_id FROM detail_tokens JOIN runs ON runs.id = run_id
    WHERE token_hash = $1 AND expires_at > clock_timestamp() AND {IS_RUN}
"""
PARTS = """
    SELECT kind, data FROM message_parts
    WHERE run_id = $1 AND kind IN ('tool-call', 'tool-status', 'tool-result') AND data->>'toolCallId' = $2
    ORDER BY seq
"""


async def create(
    driver: Driver, *, thread_id: UUID, run_id: UUID, calls: Sequence[str], lifetime: timedelta
) -> dict[str, str]:
    """Create a token for each of these calls, by one insert. Only their hashes are stored."""
    tokens = {call: ids.new_secret() for call in calls}
    hashes = [key_hash(token) for token in tokens.values()]
    await driver.execute(INSERT, thread_id, run_id, hashes, list(tokens), datetime.now(UTC) + lifetime)
    return tokens


async def find(driver: Driver, token: str, caller: Caller) -> ToolBlock:
    """The token's tool call in its current state, if the caller may read its thread.

    Raises `NotFound` for a token that is unknown or has expired, and the errors of `access.authorize`.
    """
    row = await driver.fetchrow(FIND, key_hash(token))
    if row is None:
        raise NotFound("This detail token is unknown or has expired.")
    await access.authorize(driver, row["thread_id"], caller, Action.READ_THREAD)
    stored = await driver.fetch(PARTS, row["run_id"], row["tool_call_id"])
    data = [read(part["kind"], part["data"].encode()) for part in stored]
    if not data:  # A token may outlive the time in which parts stay as they are.
        data = [part.read() for part in await packed_parts.of_run(driver, row["thread_id"], row["run_id"])]
    for block in fold((), data):
        if isinstance(block, ToolBlock) and block.tool_call_id == row["tool_call_id"]:
            return block
    raise NotFound("This detail token is unknown or has expired.")
