"""Checks of stored answers: a finished answer must equal the fold of its parts, and its receipts must be unchanged."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from khala.domain import parts
from khala.domain.chat import ACTIVE
from khala.domain.fold import fold
from khala.domain.packed_parts import digest
from khala.domain.parts import Finish
from khala.domain.receipts import chained_hash
from khala.store.postgres import rows
from khala.store.postgres.database import Driver
from khala.store.runs import packed_parts
from khala.store.threads.reset_marks import IS_MESSAGE

ANSWERS = f"""
    SELECT messages.id, messages.thread_id, messages.status, messages.seq, messages.content, messages.finish,
           messages.run_id, messages.id AS message_id, runs.status AS run_status, runs.finish AS run_finish,
           runs.plan_id, stored.*, receipts.*, runs.parts_layout, runs.parts_digest
    FROM unnest($1::uuid[]) AS chosen (id)
    JOIN messages ON messages.id = chosen.id AND {IS_MESSAGE}
    JOIN threads ON threads.id = messages.thread_id AND threads.deleted_at IS NULL
    LEFT JOIN runs ON runs.id = messages.run_id
    CROSS JOIN LATERAL (
        SELECT coalesce(array_agg(seq), '{{}}') AS seqs, coalesce(array_agg(kind), '{{}}') AS kinds,
               coalesce(array_agg(data), '{{}}') AS parts
        FROM (
            SELECT seq, kind, data FROM message_parts
            WHERE run_id = messages.run_id AND thread_id IS NOT DISTINCT FROM messages.thread_id ORDER BY run_id, seq
        ) AS part
    ) AS stored
    CROSS JOIN LATERAL (
        SELECT coalesce(array_agg(seq), '{{}}') AS receipt_seqs, coalesce(array_agg(type), '{{}}') AS receipt_types,
               coalesce(array_agg(tool_call_id), '{{}}') AS receipt_calls,
               coalesce(array_agg(data), '{{}}') AS receipts, coalesce(array_agg(cost_usd), '{{}}') AS receipt_costs,
               coalesce(array_agg(hash), '{{}}') AS receipt_hashes
        FROM (SELECT * FROM receipts WHERE run_id = messages.run_id ORDER BY run_id, seq) AS receipt
    ) AS receipts
    ORDER BY messages.id
"""
"""Answers with their parts and receipts. One statement reads one state, so it may run beside a live server."""


class StoredDifference(msgspec.Struct, frozen=True):
    """An inconsistency: its place, and the problem."""

    place: str
    problem: str


async def read_answers(driver: Driver, message_ids: Sequence[UUID]) -> Sequence[rows.Record]:
    """These answers in order of id, except deleted ones, for `answer_differences`."""
    answers: Sequence[rows.Record] = await driver.fetch(ANSWERS, message_ids)
    return answers


def answer_differences(answer: rows.Record) -> list[StoredDifference]:
    """All differences of one answer."""
    try:
        problems = _packed(answer)
        answer = _unpacked(answer)
        problems += _seqs(answer["seqs"]) + _receipts(answer) + _states(answer) + _parts(answer)
    except msgspec.DecodeError:
        problems = ["its content, parts or receipts are not readable"]
    place = f"message {answer['id']} of thread {answer['thread_id']}"
    return [StoredDifference(place, problem) for problem in problems]


def _is_ended(answer: rows.Record) -> bool:
    return bool(answer["status"] != "streaming")


def _packed(answer: rows.Record) -> list[str]:
    """Compare packed parts with their digest. Their texts are in the content, so the digest covers that, too."""
    if answer["parts_layout"] is None:
        return []
    problems = ["its parts are stored as rows and packed"] if answer["seqs"] else []
    unpacked = packed_parts.unpacked(answer)
    if digest(unpacked) != answer["parts_digest"]:
        problems.append("its packed parts are not what they were when they were packed")
    return problems


def _unpacked(answer: rows.Record) -> rows.Record:
    """The answer with its parts as they were before they were packed."""
    if answer["parts_layout"] is None:
        return answer
    unpacked = packed_parts.unpacked(answer)
    return dict(answer) | {
        "seqs": [part.seq for part in unpacked],
        "kinds": [part.kind for part in unpacked],
        "parts": [bytes(part.data).decode() for part in unpacked],
    }


def _seqs(seqs: Sequence[int]) -> list[str]:
    return [] if seqs == list(range(len(seqs))) else ["its parts are not numbered 0, 1, 2, …"]


def _parts(answer: rows.Record) -> list[str]:
    """Compare the content of an answer that has ended with its parts."""
    kinds = answer["kinds"]
    if not _is_ended(answer):
        return ["it has a finish and claims to be streaming"] if "finish" in kinds else []
    problems = []
    if kinds.count("finish") != 1 or kinds[-1] != "finish":
        problems.append("it has ended without exactly one finish, as its last part")
    stored = [parts.read(kind, data.encode()) for kind, data in zip(kinds, answer["parts"], strict=True)]
    if rows.content(answer["content"]) != fold((), stored):
        problems.append("its content is not what its parts fold to")
    if answer["seq"] != len(stored):
        problems.append(f"it claims {answer['seq']} parts and has {len(stored)}")
    return problems


def _receipts(answer: rows.Record) -> list[str]:
    """Check the chain of hashes, whose last hash is in the finish."""
    last = b""
    columns = ("receipt_seqs", "receipt_types", "receipt_calls", "receipts", "receipt_costs", "receipt_hashes")
    for seq, kind, tool_call_id, data, cost_usd, expected in zip(*(answer[name] for name in columns), strict=True):
        if expected is None:
            return []  # from before there was a chain
        identity = {"run_id": answer["run_id"], "seq": seq, "kind": kind, "tool_call_id": tool_call_id}
        last = chained_hash(last, **identity, data=msgspec.json.decode(data), cost_usd=cost_usd)
        if last != expected:
            return [f"its receipt {seq} is not what it was when it was written"]
    finish = parts.read(answer["kinds"][-1], answer["parts"][-1].encode()) if answer["kinds"] else None
    if isinstance(finish, Finish) and finish.witness != (last.hex() or None):
        return ["its receipts are not those that its finish has the hash of"]
    return []


def _states(answer: rows.Record) -> list[str]:
    ended = _is_ended(answer)
    if answer["run_status"] is None:
        return ["its run is missing"]
    expected = answer["run_status"] not in ACTIVE
    if expected != ended or (ended and answer["run_status"] != answer["status"]):
        return [f"it is {answer['status']} and its run is {answer['run_status']}"]
    if answer["run_finish"] is None and answer["parts_layout"] is not None:
        return []  # The packed parts need it in the message, and it is stored once.
    return [] if answer["finish"] == answer["run_finish"] else ["its finish is not its run's"]
