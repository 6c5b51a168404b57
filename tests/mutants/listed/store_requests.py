"""Mutants of requesters, approvals, completion requests, ephemeral threads and retries in `app/khala/store`."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="an-ended-requester-leaves-a-blocked-run",
        file="app/khala/store/runs/requesters.py",
        old="status = CASE WHEN runs.status = 'blocked' THEN 'queued' ELSE runs.status END",
        new="status = runs.status",
        tests=(
            "tests/integration/test_acting_for_others.py::test_a_requesters_blocked_runs_end_when_they_lose_write_access",
        ),
        why="The run of a removed member would wait until its question expires, and hold up all runs after it.",
    ),
    Mutant(
        name="a-member-loses-their-run-with-a-link",
        file="app/khala/store/runs/requesters.py",
        old="""AND memberships.role = ANY($4::text[]))))\"""",
        new="""AND memberships.role = ANY($4::text[]) AND memberships.role = 'owner')))\"""",
        tests=("tests/integration/test_acting_for_others.py::test_a_guests_blocked_runs_end_with_their_link",),
        why="The run of an editor who came by a link would be canceled when the link is revoked.",
    ),
    Mutant(
        name="every-editor-edits-arguments",
        file="app/khala/store/tools/approvals.py",
        old='needs_requester = decision.edited_args is not None or decision.allow == "run"',
        new='needs_requester = decision.allow == "run"',
        tests=(
            "tests/integration/test_acting_for_others.py::test_an_owner_cannot_edit_a_members_call_to_reach_the_members_private_files",
        ),
        why="An owner could turn a member's call on the member's private files.",
    ),
    Mutant(
        name="a-requester-edits-by-another-right",
        file="app/khala/store/tools/approvals.py",
        old='access.authorizations(driver, [(run["thread_id"], requester)])',
        new='access.authorizations(driver, [(run["thread_id"], caller)])',
        tests=(
            "tests/integration/test_acting_for_others.py::test_a_revoked_key_cannot_edit_a_call_with_another_credential",
        ),
        why="A link that has ended would still edit arguments, if its holder shows some other right with it.",
    ),
    Mutant(
        name="two-equal-retries-join-one-run",
        file="app/khala/store/runs/completion_requests.py",
        old="AND (attempts < $3 OR",
        new="AND (attempts <= $3 OR",
        tests=(
            "tests/integration/test_openai_retries.py::test_equal_requests_that_are_no_retries_make_separate_runs_which_their_retries_join",
        ),
        why="Two equal requests that are both retried would get one run's answer twice.",
    ),
    Mutant(
        name="a-new-request-joins-an-older-retry",
        file="app/khala/store/runs/completion_requests.py",
        old="($3 = 0 AND first_attempt > 0 AND created_at > clock_timestamp() - $4::interval)",
        new="($3 = 0 AND first_attempt > 0 AND $4::interval IS NOT NULL)",
        tests=(
            "tests/integration/test_openai_retries.py::test_a_first_attempt_overtaken_by_its_retry_joins_it_and_a_later_one_does_not",
        ),
        why="A request that is made again on purpose would get the answer to the one before.",
    ),
    Mutant(
        name="a-key-is-joined-after-its-time",
        file="app/khala/store/runs/completion_requests.py",
        old="WHERE user_id = $1 AND key_hash = $2 AND expires_at > clock_timestamp()",
        new="WHERE user_id = $1 AND key_hash = $2",
        tests=(
            "tests/integration/test_openai_retries.py::test_with_a_key_a_request_is_remembered_for_a_day_and_then_forgotten",
        ),
        why="A key would be taken up for longer than the documentation says, until retention deletes it.",
    ),
    Mutant(
        name="an-ephemeral-thread-is-listed",
        file="app/khala/store/threads/threads.py",
        old="    elif caller.user_id is not None:\n        await thread_lists.add_entry(",
        new="    if caller.user_id is not None:\n        await thread_lists.add_entry(",
        tests=(
            "tests/integration/test_ephemeral_threads.py::test_an_ephemeral_thread_is_on_no_list_and_only_its_owner_has_access",
        ),
        why="Each request of a program would leave a thread on its user's list.",
    ),
    Mutant(
        name="an-ephemeral-thread-ends-in-the-midst-of-an-answer",
        file="app/khala/store/operations/retention.py",
        old="runs.status IN ('queued', 'running'))",
        new="runs.status = 'queued')",
        tests=(
            "tests/integration/test_ephemeral_threads.py::test_an_ephemeral_thread_is_kept_while_an_answer_is_written_and_deleted_after_it",
        ),
        why="An answer that is being written would be deleted with its thread.",
    ),
    Mutant(
        name="one-try-fewer-after-a-deadlock",
        file="app/khala/store/postgres/retries.py",
        old="for tried in range(1, MAX_TRIES):",
        new="for tried in range(1, MAX_TRIES - 1):",
        tests=(
            "tests/integration/test_database_retries.py::test_a_command_that_collides_is_retried_and_takes_effect_once",
        ),
        why="A command would be refused although the next try could succeed.",
    ),
)
