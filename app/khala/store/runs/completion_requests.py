"""Completion requests: a request that is sent again joins the run that it queued, in any process.

A request is recorded in the transaction that queues its run, so that no reader sees one without the other. Each
transaction locks rows of requests before all other rows.
"""

import time
from datetime import timedelta
from uuid import UUID

import msgspec

from khala.domain.chat import SendResult
from khala.domain.errors import Conflict, IdempotencyKeyReused, RunNotFound
from khala.domain.idempotency import RETRY_WINDOW, RequestIdentity
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.threads.reset_marks import IS_RUN

MAX_ATTEMPTS = 2**15 - 1
"""The cap of the count of attempts: the largest number that the column takes."""

INSERT = """
    INSERT INTO completion_requests (run_id, user_id, key_hash, fingerprint, first_attempt, attempts, expires_at)
    VALUES ($1, $2, $3, $4, $5, $5, now() + $6::interval)
    ON CONFLICT (user_id, key_hash) DO NOTHING RETURNING run_id
"""
"""The statement waits for the end of another transaction that is storing the same key."""

JOIN_BY_KEY = f"""
    UPDATE completion_requests SET attempts = least(greatest(attempts + 1, $3), {MAX_ATTEMPTS})
    WHERE user_id = $1 AND key_hash = $2 AND expires_at > clock_timestamp()
    RETURNING run_id, fingerprint, attempts
"""

SAME_REQUEST = f"""
    SELECT run_id FROM completion_requests AS known
    WHERE user_id = $1 AND fingerprint = $2 AND key_hash IS NULL
      AND created_at > clock_timestamp() - interval '{RETRY_WINDOW.total_seconds():.0f} s'
      AND (attempts < $3 OR ($3 = 0 AND first_attempt > 0 AND created_at > clock_timestamp() - $4::interval))
      AND EXISTS (SELECT FROM runs WHERE runs.id = known.run_id AND {IS_RUN})
    ORDER BY created_at DESC LIMIT 1
"""
"""The newest run of an equal request that no retry with this number has joined. So two equal requests that are both
retried join two runs. A first attempt that arrives after its retry joins the run that the retry queued."""

JOIN_BY_FINGERPRINT = """
    UPDATE completion_requests SET attempts = greatest(attempts, $2), first_attempt = least(first_attempt, $2)
    WHERE run_id = $1 RETURNING run_id, fingerprint, attempts
"""

DELETE_EXPIRED = """
    DELETE FROM completion_requests WHERE user_id = $1 AND key_hash = $2 AND expires_at <= clock_timestamp()
"""

DELETE = "DELETE FROM completion_requests WHERE run_id = $1 AND attempts <= $2"

EXISTS = "SELECT true FROM completion_requests WHERE run_id = $1"

RUN = f"SELECT thread_id, message_id, user_message_id, revision FROM runs WHERE id = $1 AND {IS_RUN}"


class AcceptedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The run that answers a request. `attempt` distinguishes this request from later ones that joined the same run.

    `joined`: an earlier request has queued the run.
    """

    sent: SendResult
    attempt: int = 0
    joined: bool = False


async def record(driver: Driver, request: RequestIdentity) -> None:
    """Record the request, as the first statement of the transaction that queues its run.

    Raises `Conflict` if it was recorded before: `join` then returns its run.
    """
    if request.key_hash is None:
        await _lock_fingerprint(driver, request)
    else:
        await driver.execute(DELETE_EXPIRED, request.user_id, request.key_hash)
    if request.key_hash is None and await driver.fetchval(SAME_REQUEST, *_same_request_arguments(request)) is not None:
        raise Conflict("This request was made before.")
    row = (request.run_id, request.user_id, request.key_hash, request.fingerprint, request.attempt, request.lifetime)
    if await driver.fetchval(INSERT, *row) is None:
        raise Conflict("This request was made before.")


@retried
async def join(db: Database, request: RequestIdentity) -> AcceptedRequest | None:
    """Join the run that the same request queued before; None if there is none.

    Raises `IdempotencyKeyReused` for a key that was used for another request, `RunNotFound` if its run was deleted.
    """
    async with db.driver() as driver, driver.transaction():
        if request.key_hash is None:
            await _lock_fingerprint(driver, request)
            run_id = await driver.fetchval(SAME_REQUEST, *_same_request_arguments(request))
            joined = run_id and await driver.fetchrow(JOIN_BY_FINGERPRINT, run_id, request.attempt)
        else:
            joined = await driver.fetchrow(JOIN_BY_KEY, request.user_id, request.key_hash, request.attempt)
        if joined is None:
            return None
        if joined["fingerprint"] != request.fingerprint:
            raise IdempotencyKeyReused("This Idempotency-Key was used for another request before. Use a new one.")
        # With a key, each request that joins is another attempt; without one, the client numbers the attempts.
        attempt = request.attempt if request.key_hash is None else joined["attempts"]
        return AcceptedRequest(sent=await _sent(driver, joined["run_id"]), attempt=attempt, joined=True)


async def release(db: Database, accepted: AcceptedRequest) -> bool:
    """Delete the request of a client that has disconnected, so that its run can be canceled.

    Returns False if a later request has joined the run.
    """
    async with db.driver() as driver:
        await driver.execute(DELETE, accepted.sent.run_id, accepted.attempt)
        return await driver.fetchval(EXISTS, accepted.sent.run_id) is None


async def _lock_fingerprint(driver: Driver, request: RequestIdentity) -> None:
    """Lock the fingerprint until the transaction ends: other transactions neither find nor record an equal request."""
    lock = int.from_bytes(request.fingerprint[:8], "big", signed=True)
    await driver.execute("SELECT pg_advisory_xact_lock($1::bigint)", lock)


def _same_request_arguments(request: RequestIdentity) -> tuple[object, ...]:
    age = timedelta(seconds=time.monotonic() - request.received)
    return request.user_id, request.fingerprint, request.attempt, age


async def _sent(driver: Driver, run_id: UUID) -> SendResult:
    row = await driver.fetchrow(RUN, run_id)
    if row is None:
        raise RunNotFound("The answer to the request with this Idempotency-Key was deleted. Use a new key.")
    return SendResult(
        thread_id=row["thread_id"],
        user_message_id=row["user_message_id"],
        assistant_message_id=row["message_id"],
        run_id=run_id,
        revision=row["revision"],
    )
