"""Mutants of credentials, claims, blobs and presence in `app/khala/store`."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="an-expired-token-signs-in",
        file="app/khala/store/accounts/api_tokens.py",
        old="WHERE secret_hash = $1 AND coalesce(expires_at > clock_timestamp(), true)",
        new="WHERE secret_hash = $1",
        tests=("tests/integration/test_accounts.py::test_an_expired_or_revoked_token_is_refused",),
        why="A token would be good for ever.",
    ),
    Mutant(
        name="anybody-revokes-tokens",
        file="app/khala/store/accounts/api_tokens.py",
        old="(api_tokens.c.id == token_id) & (api_tokens.c.user_id == caller.user_id)",
        new="api_tokens.c.id == token_id",
        tests=("tests/integration/test_notifications.py::test_a_caller_without_an_account_has_no_credentials_to_end",),
        why="A user could end the tokens of another one.",
    ),
    Mutant(
        name="a-revoked-token-is-told-to-nobody",
        file="app/khala/store/accounts/api_tokens.py",
        old=(
            "        await notify(connection, CREDENTIALS_CHANNEL, str(caller.user_id))\n"
            '        await audit.record(connection, "token_revoked"'
        ),
        new='        await audit.record(connection, "token_revoked"',
        tests=("tests/integration/test_notifications.py::test_processes_are_notified_of_credentials_that_end",),
        why="A thief of the token would continue to follow until the next poll.",
    ),
    Mutant(
        name="one-token-too-many",
        file="app/khala/store/accounts/api_tokens.py",
        old="scalar_one() >= MAX_TOKENS:",
        new="scalar_one() > MAX_TOKENS:",
        tests=("tests/integration/test_access_store.py",),
        why="An account would have one token more than allowed.",
    ),
    Mutant(
        name="an-expired-session-signs-in",
        file="app/khala/store/accounts/sessions.py",
        old="WHERE secret_hash = $1 AND expires_at > clock_timestamp()",
        new="WHERE secret_hash = $1",
        tests=("tests/integration/test_access_store.py",),
        why="A cookie would be good until the purge.",
    ),
    Mutant(
        name="a-new-password-ends-its-own-session",
        file="app/khala/store/accounts/sessions.py",
        old="sessions.c.id.is_distinct_from(current)",
        new="(sessions.c.id == current)",
        tests=(
            "tests/integration/test_accounts.py::test_a_new_password_replaces_the_old_one_and_ends_the_other_sessions",
        ),
        why="A stolen session would survive a change of the password.",
    ),
    Mutant(
        name="a-login-by-a-password-that-was-changed",
        file="app/khala/store/accounts/sessions.py",
        old="if proof is not None:",
        new="if proof is None:",
        tests=(
            "tests/integration/test_account_races.py::test_a_login_with_a_password_that_is_changed_meanwhile_makes_no_session",
        ),
        why="A login in flight would outlive the change of the password.",
    ),
    Mutant(
        name="the-newest-sessions-end",
        file="app/khala/store/accounts/sessions.py",
        old="WHERE user_id = $1 ORDER BY created_at DESC, id DESC OFFSET",
        new="WHERE user_id = $1 ORDER BY created_at, id OFFSET",
        tests=("tests/integration/test_access_store.py",),
        why="A user with fifty sessions could not sign in any more.",
    ),
    Mutant(
        name="an-ended-session-is-told-to-nobody",
        file="app/khala/store/accounts/sessions.py",
        old=(
            "        await notify(connection, CREDENTIALS_CHANNEL, str(caller.user_id))\n"
            '        await audit.record(connection, "session_ended"'
        ),
        new='        await audit.record(connection, "session_ended"',
        tests=("tests/integration/test_notifications.py::test_processes_are_notified_of_credentials_that_end",),
        why="A browser that was signed out from elsewhere would follow on until the next poll.",
    ),
    Mutant(
        name="a-claim-takes-over-a-members-run",
        file="app/khala/store/accounts/claims.py",
        old="runs.c.id.in_(run_ids) & runs.c.user_id.is_(None) & (runs",
        new="runs.c.id.in_(run_ids) & (runs",
        tests=("tests/integration/test_leases.py::test_a_claim_leaves_the_run_of_another_account_to_that_account",),
        why="Tool calls for another requester would act with the rights of the claimer.",
    ),
    Mutant(
        name="a-claim-takes-over-what-a-link-asked-for",
        file="app/khala/store/accounts/claims.py",
        old="runs.c.user_id.is_(None) & (runs.c.asker_key_id == author_id_of_key(key_hash))",
        new="runs.c.user_id.is_(None)",
        tests=(
            "tests/integration/test_acting_for_others.py::test_a_claim_does_not_change_the_rights_of_runs_that_others_requested_by_a_link",
        ),
        why="The call of a guest with a link would read the claimer's private files.",
    ),
    Mutant(
        name="a-claim-cuts-nobody",
        file="app/khala/store/accounts/claims.py",
        old="        access_id=func.gen_random_uuid(),\n",
        new="",
        tests=(
            "tests/integration/test_revocation.py::test_observers_that_keep_access_after_a_claim_continue_without_a_gap",
        ),
        why="A holder of the old key would continue to follow.",
    ),
    Mutant(
        name="a-claimed-thread-keeps-its-key",
        file="app/khala/store/accounts/claims.py",
        old="        anon_key_hash=None,\n",
        new="",
        tests=(
            "tests/integration/test_claims.py::test_after_a_claim_the_key_and_other_users_are_forbidden_and_a_second_claim_changes_nothing",
        ),
        why="The key that was shared would still open the thread.",
    ),
    Mutant(
        name="a-claim-moves-no-budget",
        file="app/khala/store/accounts/claims.py",
        old="    await ledger.move_to_user(connection, thread_id, user_id)\n",
        new="",
        tests=("tests/integration/test_budgets.py::test_the_user_who_claims_a_thread_pays_for_its_unfinished_runs",),
        why="The runs of a claimed thread would go on at the guests' expense.",
    ),
    Mutant(
        name="a-detail-token-lasts-for-ever",
        file="app/khala/store/runs/detail_tokens.py",
        old="WHERE token_hash = $1 AND expires_at > clock_timestamp()",
        new="WHERE token_hash = $1",
        tests=(
            "tests/integration/test_access_store.py::test_a_detail_token_works_until_it_expires_for_readers_of_the_thread",
        ),
        why="A detail would be readable after the token has expired.",
    ),
    Mutant(
        name="a-detail-token-is-enough",
        file="app/khala/store/runs/detail_tokens.py",
        old='    await access.authorize(driver, row["thread_id"], caller, Action.READ_THREAD)\n',
        new="",
        tests=(
            "tests/integration/test_access_store.py::test_a_detail_token_works_until_it_expires_for_readers_of_the_thread",
        ),
        why="A user who has read a stream could read details after losing access.",
    ),
    Mutant(
        name="one-byte-too-many",
        file="app/khala/store/blobs/blobs.py",
        old="if stored + size > most_bytes:",
        new="if stored > most_bytes:",
        tests=("tests/integration/test_blobs.py::test_a_thread_stores_bytes_up_to_its_quota",),
        why="A thread could keep one blob of any size more than allowed.",
    ),
    Mutant(
        name="guests-keep-as-much-as-users",
        file="app/khala/store/blobs/blobs.py",
        old="if owner else min(quota.guest, quota.thread)",
        new="if owner else quota.thread",
        tests=("tests/integration/test_blobs.py::test_a_thread_stores_bytes_up_to_its_quota",),
        why="A guest could fill the disk.",
    ),
    Mutant(
        name="an-upload-is-taken-twice",
        file="app/khala/store/blobs/blobs.py",
        old="if len(found) != len(blob_ids):",
        new="if len(found) > len(blob_ids):",
        tests=("tests/integration/test_blobs.py::test_uploads_are_attached_once_in_the_requested_order",),
        why="A message could have the same file twice.",
    ),
    Mutant(
        name="too-many-are-told-exactly",
        file="app/khala/store/threads/presence.py",
        old='more = present[0]["present"] - len(present) if present else 0',
        new="more = 0",
        tests=(
            "tests/integration/test_presence.py::test_only_the_newest_fifty_participants_are_listed_with_the_number_of_others",
        ),
        why="A crowd would look like fifty.",
    ),
)
