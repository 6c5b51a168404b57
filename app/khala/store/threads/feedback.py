"""Feedback on answers: one row for each person and answer."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import UUID

from khala.domain.access import Action, Caller, author_id_of_key
from khala.domain.errors import InvalidInput, NotFound, Unauthorized
from khala.domain.feedback import EvaluatedAnswer, Feedback, FeedbackRating
from khala.domain.fold import text_of
from khala.store.accounts import account_marks
from khala.store.postgres import rows
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.sharing import access
from khala.store.threads.reset_marks import IS_MESSAGE

MAX_LISTED = 1_000
"""Of one person in one thread: the newest."""
PAGE_ROWS = 100

MESSAGE = f"SELECT thread_id, role FROM messages WHERE id = $1 AND {IS_MESSAGE}"
LOCK_THREAD = "SELECT id FROM threads WHERE id = $1 AND deleted_at IS NULL FOR KEY SHARE"
KEY_OPENS = "SELECT $1::uuid IS NOT NULL AND EXISTS (SELECT FROM threads WHERE anon_key_hash = $2)"
LINK_OPENS = "SELECT EXISTS (SELECT FROM share_links WHERE thread_id = $1 AND key_hash = $2)"
PUT = f"""
    INSERT INTO message_feedback (message_id, person_id, thread_id, rating, reason)
    SELECT id, $2, thread_id, $3, $4 FROM messages WHERE id = $1 AND {IS_MESSAGE}
    ON CONFLICT (message_id, person_id) DO UPDATE
    SET rating = excluded.rating, reason = excluded.reason, updated_at = now()
    RETURNING *
"""
DELETE = "DELETE FROM message_feedback WHERE message_id = $1 AND person_id = $2"
OF_PERSON = f"""
    SELECT message_feedback.* FROM message_feedback
    JOIN messages ON messages.id = message_feedback.message_id AND {IS_MESSAGE}
    WHERE message_feedback.thread_id = $1 AND person_id = $2
    ORDER BY message_feedback.updated_at DESC, message_id LIMIT {MAX_LISTED}
"""
MOVE = """
    WITH replaced AS (
        DELETE FROM message_feedback AS theirs USING message_feedback AS mine
        WHERE theirs.thread_id = $1 AND theirs.person_id = $2
          AND mine.message_id = theirs.message_id AND mine.person_id = $3
        RETURNING theirs.message_id
    )
    UPDATE message_feedback SET person_id = $3
    WHERE thread_id = $1 AND person_id = $2 AND message_id NOT IN (SELECT message_id FROM replaced)
"""
EVALUATED = f"""
    SELECT given.*, answers.run_id, answers.finish ->> 'model' AS model, answers.finish ->> 'provider' AS provider,
           runs.options ->> 'agent' AS agent, CASE WHEN $6 THEN answers.content END AS answer,
           CASE WHEN $6 THEN (
               SELECT content FROM messages WHERE messages.id = runs.user_message_id AND {IS_MESSAGE}
           ) END AS question
    FROM (
        SELECT * FROM message_feedback
        WHERE updated_at >= $1 AND (updated_at, message_id, person_id) > ($2, $3, $4)
        ORDER BY updated_at, message_id, person_id LIMIT $5
    ) AS given
    JOIN messages AS answers ON answers.id = given.message_id
    JOIN threads ON threads.id = given.thread_id AND threads.deleted_at IS NULL
    LEFT JOIN runs ON runs.id = answers.run_id AND runs.thread_id = answers.thread_id
    ORDER BY given.updated_at, given.message_id, given.person_id
"""
LAST = (
    "SELECT updated_at, message_id, person_id FROM message_feedback"
    + """
    WHERE updated_at >= $1 AND (updated_at, message_id, person_id) > ($2, $3, $4)
    ORDER BY updated_at, message_id, person_id LIMIT $5
"""
)
FIRST = datetime.min.replace(tzinfo=UTC), UUID(int=0), UUID(int=0)


async def _person_of(driver: Driver, thread_id: UUID, caller: Caller) -> UUID | None:
    """The account, or the holder of a key that opens a thread; None for others: anybody can make up keys."""
    if caller.user_id is not None:
        return caller.user_id
    for key, query in ((caller.anon_key_hash, KEY_OPENS), (caller.share_key_hash, LINK_OPENS)):
        if key is not None and await driver.fetchval(query, thread_id, key):
            return author_id_of_key(key)
    return None


@retried
async def put(
    db: Database, message_id: UUID, caller: Caller, *, rating: FeedbackRating, reason: str | None
) -> Feedback:
    """Store the caller's feedback on an answer, in place of an earlier one.

    Raises `NotFound`, `InvalidInput` for a message that is no answer, and the errors of `access.authorize`.
    """
    async with db.driver() as driver, driver.transaction():
        person_id = await _authorize(driver, message_id, caller, is_answer=True)
        row = await driver.fetchrow(PUT, message_id, person_id, rating, reason)
        if row is None:
            raise NotFound("There is no such message.")
        return _feedback(row)


@retried
async def remove(db: Database, message_id: UUID, caller: Caller) -> None:
    """Delete the caller's feedback, if there is any. Raises the errors of `put`."""
    async with db.driver() as driver, driver.transaction():
        person_id = await _authorize(driver, message_id, caller, is_answer=False)
        await driver.execute(DELETE, message_id, person_id)


async def _authorize(driver: Driver, message_id: UUID, caller: Caller, *, is_answer: bool) -> UUID:
    """Lock what the caller's feedback belongs to, and return the caller's id as a person."""
    message = await driver.fetchrow(MESSAGE, message_id)
    if message is None:
        raise NotFound("There is no such message.")
    await driver.fetchval(LOCK_THREAD, message["thread_id"])
    await access.authorize(driver, message["thread_id"], caller, Action.READ_THREAD)
    person_id = await _person_of(driver, message["thread_id"], caller)
    if person_id is None:
        raise Unauthorized("Feedback needs an account, or a key that opens a thread.")
    if is_answer and message["role"] != "assistant":
        raise InvalidInput("Feedback is for answers of an assistant.", path="message_id")
    if caller.user_id is not None:
        await account_marks.lock_account(driver, caller.user_id)
    return person_id


async def of_person(driver: Driver, thread_id: UUID, caller: Caller) -> list[Feedback]:
    """The caller's feedback on the thread's answers, the newest first. Raises the errors of `access.authorize`."""
    await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
    person_id = await _person_of(driver, thread_id, caller)
    if person_id is None:
        return []
    return [_feedback(row) for row in await driver.fetch(OF_PERSON, thread_id, person_id)]


async def move(driver: Driver, thread_id: UUID, key_id: UUID, user_id: UUID) -> None:
    """Let a guest's feedback in the thread be the user's. The caller holds the thread's lock."""
    await driver.execute(MOVE, thread_id, key_id, user_id)


async def evaluated(db: Database, *, since: datetime, with_texts: bool) -> AsyncIterator[EvaluatedAnswer]:
    """All feedback that was given since then, the oldest first, page by page."""
    after = FIRST
    while True:
        async with db.driver() as driver:
            read = await driver.fetch(LAST, since, *after, PAGE_ROWS)
            found = await driver.fetch(EVALUATED, since, *after, PAGE_ROWS, with_texts)
        for row in found:
            yield _evaluated(row)
        if len(read) < PAGE_ROWS:
            return
        after = read[-1]["updated_at"], read[-1]["message_id"], read[-1]["person_id"]


def _feedback(row: rows.Record) -> Feedback:
    return Feedback(**{name: row[name] for name in Feedback.__struct_fields__})


def _evaluated(row: rows.Record) -> EvaluatedAnswer:
    known = {name: row[name] for name in EvaluatedAnswer.__struct_fields__ if name not in ("question", "answer")}
    return EvaluatedAnswer(**known, question=_text(row["question"]), answer=_text(row["answer"]))


def _text(stored: str | None) -> str | None:
    return None if stored is None else text_of(rows.content(stored) or ())
