"""Mutants of approvals, budgets and lists of threads in `app/khala/store`."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="a-denial-is-overwritten",
        file="app/khala/store/tools/approvals.py",
        old='if row.state == "pending":',
        new='if row.state in ("pending", "denied"):',
        tests=("tests/integration/test_leases.py::test_a_decision_cannot_be_changed_while_its_run_is_unfinished",),
        why="A denied call would run after a later approval.",
    ),
    Mutant(
        name="an-approval-of-another-call",
        file="app/khala/store/tools/approvals.py",
        old="if decision.digest is not None and decision.digest != row.digest:",
        new="if decision.digest is not None and not row.digest:",
        tests=("tests/integration/test_approvals.py::test_a_decision_is_bound_to_the_digest_of_the_call",),
        why="A user would approve a call that they have not seen.",
    ),
    Mutant(
        name="an-answer-wakes-no-executor",
        file="app/khala/store/tools/approvals.py",
        old=(
            "        await thread_lists.mark_changed(await driver_of(connection), [run.thread_id])\n"
            '    await notify(connection, RUNS_CHANNEL, "")\n'
        ),
        new="        await thread_lists.mark_changed(await driver_of(connection), [run.thread_id])\n",
        tests=("tests/integration/test_notifications.py::test_executors_are_notified",),
        why="An approved call would run a sweep later.",
    ),
    Mutant(
        name="an-approval-expires",
        file="app/khala/store/tools/approvals.py",
        old="WHERE state = 'pending' AND expires_at <= clock_timestamp() AND thread_id",
        new="WHERE expires_at <= clock_timestamp() AND thread_id",
        tests=(
            "tests/integration/test_leases.py::test_approval_requests_expire_and_decisions_and_running_runs_do_not",
        ),
        why="An answer that was given would be taken back when the question's time is up.",
    ),
    Mutant(
        name="an-expired-question-stops-its-run",
        file="app/khala/store/tools/approvals.py",
        old="thread_id = ANY($2::uuid[]) AND status = 'blocked'",
        new="thread_id = ANY($2::uuid[])",
        tests=(
            "tests/integration/test_leases.py::test_approval_requests_expire_and_decisions_and_running_runs_do_not",
        ),
        why="A run that is worked on would be claimed by a second executor.",
    ),
    Mutant(
        name="an-approval-with-other-arguments-is-the-same",
        file="app/khala/store/tools/approvals.py",
        old="        decision.edited_args if decision.approved else None,\n",
        new="        edited,\n",
        tests=("tests/integration/test_leases.py::test_a_decision_with_other_arguments_is_another_decision",),
        why="A user who edits the arguments too late would get a success.",
    ),
    Mutant(
        name="a-run-is-settled-twice",
        file="app/khala/store/budgets/ledger.py",
        old=(
            "AND entry.settled IS NULL\n"
            "        ORDER BY entry.run_id, entry.scope, entry.measure FOR NO KEY UPDATE OF entry\n"
            "    ), spent"
        ),
        new=("\n        ORDER BY entry.run_id, entry.scope, entry.measure FOR NO KEY UPDATE OF entry\n    ), spent"),
        tests=("tests/integration/test_budgets.py::test_whatever_ends_a_run_settles_it_once",),
        why="A budget would be given back twice.",
    ),
    Mutant(
        name="sends-wait-for-a-locked-stripe",
        file="app/khala/store/budgets/stripes.py",
        old="            LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED\n",
        new="            LIMIT 1 FOR NO KEY UPDATE\n",
        tests=(
            "tests/integration/test_budget_stripes.py::test_sends_do_not_wait_for_a_process_that_is_frozen_in_a_send",
        ),
        why="A frozen process would stop all sends.",
    ),
    Mutant(
        name="a-stripe-of-a-higher-limit",
        file="app/khala/store/budgets/stripes.py",
        old="AND budget_stripes.most <= requested.most AND",
        new="AND",
        tests=(
            "tests/integration/test_budget_stripes.py::test_a_lower_limit_applies_at_once_and_a_higher_one_adds_the_difference",
        ),
        why="A lower limit would apply only to what was not divided yet.",
    ),
    Mutant(
        name="a-return-to-a-lower-limit",
        file="app/khala/store/budgets/stripes.py",
        old="          AND budget_stripes.most >= summed.most\n",
        new="",
        tests=(
            "tests/integration/test_budget_stripes.py::test_what_a_run_under_a_higher_limit_returns_is_not_for_a_lower_one",
        ),
        why="What runs of an older limit release would raise a lower one.",
    ),
    Mutant(
        name="a-share-is-granted-twice",
        file="app/khala/store/budgets/stripes.py",
        old="reserved = budgets.reserved + (SELECT coalesce(sum(reserved), 0) FROM changed)\n",
        new="reserved = budgets.reserved + (SELECT coalesce(sum(reserved - reserved), 0) FROM changed)\n",
        tests=("tests/integration/test_budget_stripes.py::test_a_refill_with_other_shares_changes_no_usage",),
        why="The limit of the whole deployment would be exceeded.",
    ),
    Mutant(
        name="a-runs-own-limit-is-not-extended-within",
        file="app/khala/store/budgets/ledger.py",
        old='_window_key(entry): WindowUsage(reserved=entry.reserved) for entry in entries if entry.scope == "run"',
        new='_window_key(entry): WindowUsage() for entry in entries if entry.scope == "run"',
        tests=(
            "tests/integration/test_budgets.py::test_an_extension_fits_every_budget_or_reserves_nothing",
            "tests/integration/test_budgets.py::test_time_is_reserved_in_portions_until_none_is_left",
            "tests/integration/test_budgets.py::test_a_silent_model_is_stopped_when_the_time_budget_is_used_up",
            "tests/integration/test_agents.py::test_a_budget_of_tokens_stops_the_loop_and_says_why",
        ),
        why="A run would get twice its own limit.",
    ),
    Mutant(
        name="one-try-too-many",
        file="app/khala/store/budgets/counters.py",
        old="WHERE budget.settled < $6::int",
        new="WHERE budget.settled <= $6::int",
        tests=(
            "tests/integration/test_budgets.py::test_counts_are_shared_by_all_processes_and_survive_a_rollback_around_them",
        ),
        why="One wrong password more would be allowed than the limit says.",
    ),
    Mutant(
        name="the-last-bytes-of-the-day-are-refused",
        file="app/khala/store/budgets/counters.py",
        old="WHERE budget.settled + $6::numeric <= $7::numeric",
        new="WHERE budget.settled + $6::numeric < $7::numeric",
        tests=("tests/integration/test_budgets.py::test_an_amount_is_counted_up_to_the_limit_and_not_beyond",),
        why="An amount that exactly fits would be refused.",
    ),
    Mutant(
        name="what-was-not-counted-is-taken-back",
        file="app/khala/store/budgets/counters.py",
        old="AND starts_at = $4 AND settled > 0",
        new="AND starts_at = $4",
        tests=("tests/integration/test_budgets.py::test_an_amount_that_was_never_counted_is_not_released",),
        why="A count could fall below nothing, and allow more than the limit.",
    ),
    Mutant(
        name="a-claim-moves-what-was-settled",
        file="app/khala/store/budgets/ledger.py",
        old="entry.scope = 'key' AND entry.settled IS NULL",
        new="entry.scope = 'key'",
        tests=(
            "tests/integration/test_budgets.py::test_a_claim_moves_open_reservations_to_the_user_and_leaves_settled_ones",
        ),
        why="A claim would make room in the key's budget for more.",
    ),
    Mutant(
        name="a-canceled-run-that-waited-costs-all",
        file="app/khala/store/runs/endings.py",
        old='interrupted=ending.unheld_status == "running")',
        new="interrupted=ending.unheld_status is not None)",
        tests=("tests/integration/test_budgets.py::test_whatever_ends_a_run_settles_it_once",),
        why="A user who cancels a run before its start would pay for it.",
    ),
    Mutant(
        name="read-up-to-the-future",
        file="app/khala/store/threads/thread_lists.py",
        old="UPDATE listings SET read_revision = least($3, threads.revision) FROM threads",
        new="UPDATE listings SET read_revision = $3 FROM threads",
        tests=(
            "tests/integration/test_account_feed.py::test_messages_after_a_read_mark_are_unread_whatever_their_content",
        ),
        why="Later messages would never show as unread.",
    ),
    Mutant(
        name="a-read-mark-goes-back",
        file="app/khala/store/threads/thread_lists.py",
        old=("AND NOT gone\n      AND read_revision < least($3, threads.revision)\n"),
        new="AND NOT gone\n",
        tests=("tests/integration/test_sharing.py::test_a_read_mark_is_stored_for_the_account_and_never_goes_back",),
        why="A second browser that is behind would make everything unread again.",
    ),
    Mutant(
        name="a-list-at-its-floor-starts-over",
        file="app/khala/store/accounts/account_feed.py",
        old='user["floor_revision"] <= after < user["revision"]',
        new='user["floor_revision"] < after < user["revision"]',
        tests=(
            "tests/integration/test_account_feed.py::test_a_watch_resumes_after_the_revision_that_is_known",
            "tests/integration/test_account_feed.py::test_a_cursor_that_cannot_be_served_gets_the_whole_list",
            "tests/integration/test_account_feed.py::test_a_list_is_served_from_its_floor_on",
        ),
        why="A browser would get the whole list though only one thread has changed.",
    ),
    Mutant(
        name="a-list-loses-its-last-threads",
        file="app/khala/store/accounts/account_feed.py",
        old="if not _can_serve(user, after) or len(entries) > MAX_LISTED_THREADS:",
        new="if not _can_serve(user, after):",
        tests=("tests/integration/test_account_feed.py::test_a_cursor_that_cannot_be_served_gets_the_whole_list",),
        why="A browser far behind would get more than one frame may tell.",
    ),
    Mutant(
        name="everything-is-unread",
        file="app/khala/store/accounts/account_feed.py",
        old="entry.said_revision > entry.read_revision AS unread",
        new="entry.said_revision >= entry.read_revision AS unread",
        tests=(
            "tests/integration/test_account_feed.py::test_messages_after_a_read_mark_are_unread_whatever_their_content",
        ),
        why="A thread that was read to its end would show as unread.",
    ),
    Mutant(
        name="an-expired-session-watches-its-list",
        file="app/khala/store/accounts/account_feed.py",
        old=("sessions.id = asked.credential\n                  AND sessions.expires_at > clock_timestamp())"),
        new="sessions.id = asked.credential)",
        tests=(
            "tests/integration/test_revocation.py::test_an_expired_credential_is_revoked_within_a_second_and_keys_continue",
            "tests/integration/test_access_store.py",
        ),
        why="A browser whose session has ended would get the list.",
    ),
    Mutant(
        name="active-guests-are-deleted",
        file="app/khala/store/operations/retention.py",
        old="created_at < now() - $1::interval AND updated_at < now() - $1::interval",
        new="created_at < now() - $1::interval",
        tests=("tests/integration/test_retention.py::test_threads_that_are_owned_or_new_or_active_stay",),
        why="A thread in use would be deleted because it is old.",
    ),
    Mutant(
        name="owned-threads-are-deleted",
        file="app/khala/store/operations/retention.py",
        old="WHERE owner_id IS NULL AND deleted_at IS NULL",
        new="WHERE deleted_at IS NULL",
        tests=("tests/integration/test_retention.py::test_threads_that_are_owned_or_new_or_active_stay",),
        why="A user's threads would be deleted.",
    ),
    Mutant(
        name="reserved-budgets-are-deleted",
        file="app/khala/store/operations/retention.py",
        old=(
            "interval '1 day' AND reserved + coalesce((\n"
            "        SELECT sum(stripes.reserved) FROM budget_stripes AS stripes\n"
            "        WHERE (stripes.scope, stripes.key, stripes.measure, stripes.starts_at)\n"
            "            = (budgets.scope, budgets.key, budgets.measure, budgets.starts_at)), 0) = 0"
        ),
        new="interval '1 day'",
        tests=(
            "tests/integration/test_budgets.py::test_old_windows_and_old_entries_are_purged_but_none_that_a_run_still_needs",
        ),
        why="A run that ends later could not release its reservation.",
    ),
    Mutant(
        name="a-threads-row-goes-before-its-messages",
        file="app/khala/store/operations/retention.py",
        old='    "messages": "thread_id",\n',
        new="",
        tests=("tests/integration/test_retention.py::test_a_deleted_threads_row_is_purged_after_its_contents",),
        why="Messages of deleted threads would stay for ever.",
    ),
    Mutant(
        name="two-processes-purge",
        file="app/khala/store/operations/retention.py",
        old="return await step(connection) if got.scalar_one() else {}",
        new="return await step(connection) if got.scalar_one() is not None else {}",
        tests=("tests/integration/test_retention.py::test_a_purge_does_nothing_while_another_one_runs",),
        why="All processes would purge the same rows at the same time.",
    ),
)
