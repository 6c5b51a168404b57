"""The check of the lock order: the violations it reports, and the orders it permits."""

from typing import Any

import pytest

from khala.domain import ids
from khala.store.budgets import windows
from khala.store.postgres.lock_order import GUARDS, LOCK_ORDER, UNCONTENDED
from khala.store.runs import endings, parts
from khala.store.schema.tables import metadata
from khala.store.threads import thread_lists
from tests.support import lock_order
from tests.support.lock_order import Transaction
from tests.support.statement_locks import touches

LOW, HIGH = sorted((ids.new(), ids.new()))
THREAD = "SELECT * FROM threads WHERE id = $1 FOR UPDATE"
USER = "SELECT id FROM users WHERE id = $1 FOR NO KEY UPDATE"
RUN = "SELECT * FROM runs WHERE id = $1 AND thread_id = $2 FOR UPDATE"
BUDGETS = ([""], [b""], [""], [None], [None])


def _problems(*statements: tuple[str, tuple[Any, ...]]) -> list[str]:
    transaction = Transaction()
    found: list[str] = []
    for statement, args in statements:
        found += transaction.run(statement, args)
        transaction.ran(statement, [{"id": args[0]}])
    return [problem.split(":")[0] for problem in found]


def test_every_table_has_a_lock_rank_a_guard_or_is_never_waited_for() -> None:
    assert {table.name for table in metadata.sorted_tables} == (
        set(LOCK_ORDER) - {"gate", "keeping", "owner", "space"} | GUARDS.keys() | UNCONTENDED
    )


def test_budgets_after_the_user_are_found() -> None:
    assert _problems((USER, (LOW,)), (windows.LOCK, BUDGETS)) == ["locks budgets after users"]
    assert _problems((windows.LOCK, BUDGETS), (USER, (LOW,))) == []


def test_a_lock_that_is_held_may_be_asked_for_again() -> None:
    assert _problems((THREAD, (LOW,)), (USER, (LOW,)), (THREAD, (LOW,))) == []
    assert _problems((THREAD, (LOW,)), (USER, (LOW,)), (THREAD, (HIGH,))) == ["locks other rows of threads after users"]


def test_rows_of_a_table_are_locked_in_the_order_of_their_keys() -> None:
    assert _problems((THREAD, (LOW,)), (THREAD, (HIGH,))) == []
    assert len(_problems((THREAD, (HIGH,)), (THREAD, (LOW,)))) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE threads SET revision = revision + 1 WHERE id = ANY($1::uuid[])",
        "SELECT id FROM users WHERE id = ANY($1::uuid[]) FOR UPDATE",
        "DELETE FROM runs WHERE thread_id = $1",
        "UPDATE threads SET revision = 1 FROM (SELECT unnest($1::uuid[]) AS id) AS due WHERE threads.id = due.id",
    ],
)
def test_several_rows_in_no_order_are_found(statement: str) -> None:
    problem, *_ = _problems((statement, ([LOW, HIGH],)))
    assert problem.endswith("in no order")


def test_several_rows_after_a_statement_that_locks_them_in_order_pass() -> None:
    ordered = "SELECT id FROM users WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE"
    assert _problems((ordered, ([LOW, HIGH],)), ("DELETE FROM users WHERE id = ANY($1::uuid[])", ([LOW],))) == []


def test_a_statement_with_skip_locked_is_permitted() -> None:
    assert _problems((USER, (LOW,)), ("SELECT id FROM threads LIMIT $1 FOR UPDATE SKIP LOCKED", (1,))) == []


def test_a_foreign_keys_lock_counts() -> None:
    (session, user) = touches("INSERT INTO sessions (id, user_id) VALUES ($1, $2)")
    assert (session.waits, user.name, user.waits) == (False, "users", True)
    begun = ("UPDATE passwords SET hash = $2 WHERE user_id = $1", (LOW, ""))
    assert len(_problems(begun, ("INSERT INTO sessions (id, user_id) VALUES ($1, $2)", (HIGH, LOW)))) == 1


def test_rows_below_a_guard_are_changed_under_it() -> None:
    member = ("DELETE FROM memberships WHERE thread_id = $1", (LOW,))
    assert _problems((THREAD, (LOW,)), member) == []
    assert len(_problems((windows.LOCK, BUDGETS), member)) == 1


def test_a_step_and_an_end_of_different_runs_are_locked_at_once() -> None:
    step = (parts.SET_STEPS, ([HIGH], [ids.new()], [1], [1]))
    end = (endings.END, ([LOW], [ids.new()], [1], ["final"], ["{}"], ["[]"], [1], [None]))
    assert _problems((THREAD, (LOW,)), step, end) == ["locks unknown further rows of runs"]


def test_the_lists_of_all_members_after_one_user_are_found() -> None:
    assert len(_problems((USER, (LOW,)), (thread_lists.LOCK_LISTED_USERS, ([HIGH],)))) == 1
    alone = (thread_lists.MARK_CHANGED, ([HIGH], [LOW], False, True, None, ""))
    assert _problems((USER, (LOW,)), alone) == []
    both = (thread_lists.MARK_CHANGED, ([HIGH], [LOW, HIGH], False, True, None, ""))
    assert len(_problems(both)) == 1


def test_a_violation_in_another_process_fails_the_test() -> None:
    lock_order.violations_file().write_text("locks budgets after users\n")
    assert lock_order.take_violations() == ["locks budgets after users"]
    assert lock_order.take_violations() == []
