"""Mutants of threads, their readers and access to them in `app/khala/store`."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="private-keeps-the-links",
        file="app/khala/store/threads/threads.py",
        old='if visibility == "private" and await _revoke_links(connection, thread_id):',
        new="if False:",
        tests=("tests/integration/test_sharing.py::test_private_revokes_all_links_for_good_and_keeps_members",),
        why="A link would open the thread again as soon as another one is made.",
    ),
    Mutant(
        name="private-cuts-no-follower",
        file="app/khala/store/threads/threads.py",
        old='{"visibility": visibility, "access_id": func.gen_random_uuid()}',
        new='{"visibility": visibility}',
        tests=(
            "tests/integration/test_revocation.py::test_after_a_revocation_its_observers_get_nothing_in_any_process_and_others_miss_nothing",
        ),
        why="Observers by a link or by public access would continue to follow.",
    ),
    Mutant(
        name="an-expired-link-lists-its-thread",
        file="app/khala/store/threads/thread_pages.py",
        old="WHERE key_hash = $3 AND coalesce(expires_at > clock_timestamp(), true) AND",
        new="WHERE key_hash = $3 AND",
        tests=("tests/integration/test_access_store.py::test_a_link_lists_its_thread_until_it_expires",),
        why="A holder of an expired link would get the title of the thread.",
    ),
    Mutant(
        name="a-change-tells-nobody",
        file="app/khala/store/threads/threads.py",
        old=("    await notify(connection, THREADS_CHANNEL, str(thread_id))\n    return revision"),
        new="    return revision",
        tests=("tests/integration/test_notifications.py::test_observers_are_notified",),
        why="Observers would get a new title only at the next poll.",
    ),
    Mutant(
        name="a-reset-is-a-delta",
        file="app/khala/store/threads/threads.py",
        old='changes: dict[str, Any] = {"reset_revision": revision, "active_leaf": None}',
        new='changes: dict[str, Any] = {"active_leaf": None}',
        tests=(
            "tests/integration/test_feed_deltas.py::test_a_cursor_from_before_a_reset_gets_a_snapshot_that_says_so",
        ),
        why="A reader from before a reset would keep messages that are gone.",
    ),
    Mutant(
        name="a-page-repeats-its-cursor",
        file="app/khala/store/threads/thread_pages.py",
        old="WHERE anon_key_hash = $2 AND deleted_at IS NULL AND (threads.created_at, threads.id) < ($4, $5)",
        new="WHERE anon_key_hash = $2 AND deleted_at IS NULL AND (threads.created_at, threads.id) <= ($4, $5)",
        tests=("tests/integration/test_api_threads.py::test_a_key_lists_its_own_threads_newest_first_page_by_page",),
        why="The last thread of a page would come again on the next.",
    ),
    Mutant(
        name="editors-may-publish",
        file="app/khala/store/threads/threads.py",
        old="Action.EDIT_THREAD if visibility is msgspec.UNSET else Action.SET_VISIBILITY",
        new="Action.EDIT_THREAD",
        tests=("tests/integration/test_leases.py::test_an_editor_cannot_change_access",),
        why="An editor could open the thread to everybody.",
    ),
    Mutant(
        name="a-leaf-of-another-thread",
        file="app/khala/store/threads/threads.py",
        old="messages.c.id == message_id, messages.c.thread_id == thread_id)",
        new="messages.c.id == message_id)",
        tests=("tests/integration/test_branches.py::test_an_active_leaf_must_be_a_message_of_the_thread",),
        why="A thread could go on from a message of another one.",
    ),
    Mutant(
        name="a-reset-keeps-reservations",
        file="app/khala/store/threads/threads.py",
        old="        await ledger.settle_deleted(driver, active)\n",
        new="",
        tests=(
            "tests/integration/test_budgets.py::test_whatever_ends_a_run_settles_it_once",
            "tests/integration/test_budgets.py::test_a_run_that_is_canceled_or_deleted_while_running_releases_its_reservation",
        ),
        why="A reset in the midst of an answer would hold its budget back for ever.",
    ),
    Mutant(
        name="a-deleted-thread-wakes-no-executor",
        file="app/khala/store/threads/threads.py",
        old=('THREADS_CHANNEL, thread_ids)\n    await notify(connection, RUNS_CHANNEL, "")\n'),
        new="THREADS_CHANNEL, thread_ids)\n",
        tests=("tests/integration/test_notifications.py::test_observers_and_executors_are_notified",),
        why="Until the next sweep, a model would be paid for an answer that cannot be read.",
    ),
    Mutant(
        name="a-hundred-messages-are-too-many",
        file="app/khala/store/threads/thread_feed.py",
        old="len(messages) > MAX_DELTA_MESSAGES or",
        new="len(messages) >= MAX_DELTA_MESSAGES or",
        tests=("tests/integration/test_cursors.py",),
        why="A reader would get a snapshot where a delta is promised.",
    ),
    Mutant(
        name="a-delta-without-its-last-messages",
        file="app/khala/store/threads/thread_feed.py",
        old=" or len(messages) > MAX_DELTA_MESSAGES or len(records)",
        new=" or len(records)",
        tests=("tests/integration/test_cursors.py",),
        why="A reader far behind would miss messages, and never learn of it.",
    ),
    Mutant(
        name="two-thousand-parts-are-too-many",
        file="app/khala/store/threads/thread_feed.py",
        old="len(records) > MAX_DELTA_PARTS:",
        new="len(records) >= MAX_DELTA_PARTS:",
        tests=("tests/integration/test_cursors.py",),
        why="A reader would get a snapshot where a delta is promised.",
    ),
    Mutant(
        name="a-delta-without-its-last-parts",
        file="app/khala/store/threads/thread_feed.py",
        old="len(messages) > MAX_DELTA_MESSAGES or len(records) > MAX_DELTA_PARTS:",
        new="len(messages) > MAX_DELTA_MESSAGES:",
        tests=("tests/integration/test_cursors.py",),
        why="A reader far behind would miss text, and never learn of it.",
    ),
    Mutant(
        name="parts-are-cut-unseen",
        file="app/khala/store/threads/thread_feed.py",
        old="LIMIT {MAX_DELTA_PARTS + 1}",
        new="LIMIT {MAX_DELTA_PARTS}",
        tests=("tests/integration/test_cursors.py",),
        why="A reader one part too far behind would miss that part.",
    ),
    Mutant(
        name="messages-are-cut-unseen",
        file="app/khala/store/threads/thread_feed.py",
        old="LIMIT {MAX_DELTA_MESSAGES + 1}",
        new="LIMIT {MAX_DELTA_MESSAGES}",
        tests=("tests/integration/test_cursors.py",),
        why="A reader one message too far behind would miss that message.",
    ),
    Mutant(
        name="a-cursor-at-the-reset-starts-over",
        file="app/khala/store/threads/thread_feed.py",
        old='row["oldest_revision"] <= after < row["now"]',
        new='row["oldest_revision"] < after < row["now"]',
        tests=(
            "tests/integration/test_feed_deltas.py::test_a_cursor_from_before_a_reset_gets_a_snapshot_that_says_so",
            "tests/integration/test_cursors.py::test_a_cursor_at_a_reset_continues_from_it",
        ),
        why="A reader who has received the reset would get it again.",
    ),
    Mutant(
        name="a-snapshot-after-the-reset-says-reset",
        file="app/khala/store/threads/thread_feed.py",
        old='reset=first["reset_revision"] > after)',
        new='reset=first["reset_revision"] >= after)',
        tests=("tests/integration/test_cursors.py::test_a_cursor_at_a_reset_continues_from_it",),
        why="A client would discard its state although nothing was reset since.",
    ),
    Mutant(
        name="there-is-always-more",
        file="app/khala/store/threads/thread_feed.py",
        old='page[0]["total"] > len(page)',
        new='page[0]["total"] >= len(page)',
        tests=(
            "tests/integration/test_api_reads.py::test_a_long_thread_is_read_from_its_newest_messages_page_by_page",
        ),
        why="A client would ask for older messages for ever.",
    ),
    Mutant(
        name="older-messages-through-another-thread",
        file="app/khala/store/threads/thread_feed.py",
        old='query = f"SELECT position FROM messages WHERE id = $1 AND thread_id = $2 AND {IS_MESSAGE}"',
        new='query = "SELECT position FROM messages WHERE id = $1 AND $2::uuid IS NOT NULL"',
        tests=(
            "tests/integration/test_api_access.py::test_the_older_messages_of_a_thread_are_not_reached_through_another",
        ),
        why="A stranger could learn where in its thread a message is.",
    ),
    Mutant(
        name="a-known-title-is-told-again",
        file="app/khala/store/threads/thread_feed.py",
        old='bool(row["meta_revision"] > after)',
        new='bool(row["meta_revision"] >= after)',
        tests=(
            "tests/integration/test_feed_deltas.py::test_the_frames_of_an_answer_have_the_documented_shape",
            "tests/laws/test_store.py::test_a_snapshot_and_the_deltas_after_it_give_every_later_snapshot",
            "tests/integration/test_cursors.py::test_a_change_of_the_thread_itself_is_sent_once",
        ),
        why="Each delta of an answer would bear the whole thread, and take a transaction.",
    ),
    Mutant(
        name="a-page-of-any-size",
        file="app/khala/store/threads/thread_feed.py",
        old="WHERE place = 1 OR bytes <= $4 ORDER BY",
        new="ORDER BY",
        tests=("tests/integration/test_cursors.py::test_a_page_has_one_message_or_as_many_as_fit_into_its_bytes",),
        why="A snapshot would be one message larger than it may be, of any size.",
    ),
    Mutant(
        name="an-expired-session-opens-threads",
        file="app/khala/store/sharing/access.py",
        old=(
            "sessions.id = request.credential\n                          AND sessions.expires_at > clock_timestamp())"
        ),
        new="sessions.id = request.credential)",
        tests=("tests/integration/test_access_store.py",),
        why="A session whose time is up would open threads.",
    ),
    Mutant(
        name="an-expired-token-opens-threads",
        file="app/khala/store/sharing/access.py",
        old=(
            "api_tokens.id = request.credential\n"
            "                          AND coalesce(api_tokens.expires_at > clock_timestamp(), true)))"
        ),
        new="api_tokens.id = request.credential))",
        tests=("tests/integration/test_access_store.py",),
        why="A token whose time is up would open threads.",
    ),
    Mutant(
        name="an-expired-link-opens-its-thread",
        file="app/khala/store/sharing/access.py",
        old="         AND coalesce(share_links.expires_at > clock_timestamp(), true)\n",
        new="",
        tests=(
            "tests/integration/test_sharing.py::test_an_expired_link_grants_no_access_and_is_not_listed",
            "tests/integration/test_access_store.py",
        ),
        why="A link whose time is up would open its thread.",
    ),
    Mutant(
        name="a-link-opens-every-thread",
        file="app/khala/store/sharing/access.py",
        old="share_links ON share_links.thread_id = threads.id AND share_links.key_hash",
        new="share_links ON share_links.key_hash",
        tests=(
            "tests/integration/test_sharing.py::test_a_link_grants_no_access_to_another_thread_whose_owner_cannot_revoke_it",
            "tests/integration/test_access_store.py",
        ),
        why="A link to one thread would open all others.",
    ),
    Mutant(
        name="a-deleted-thread-can-be-read",
        file="app/khala/store/sharing/access.py",
        old="threads.id = request.thread_id AND (threads.deleted_at IS NULL) IS TRUE",
        new="threads.id = request.thread_id",
        tests=("tests/integration/test_access_store.py",),
        why="A deleted thread would answer as one that is closed, which tells that it was there.",
    ),
    Mutant(
        name="threads-of-a-deleted-account-stay-open",
        file="app/khala/store/sharing/access.py",
        old="(threads.deleted_at IS NULL) IS TRUE AND {IS_OWNER_PRESENT}",
        new="(threads.deleted_at IS NULL) IS TRUE",
        tests=(
            "tests/integration/test_account_removal.py::test_after_the_mark_the_account_and_its_threads_are_unusable",
        ),
        why="Until the purge has closed them, members could read and write in the threads of a deleted account.",
    ),
    Mutant(
        name="a-deleted-user-has-access",
        file="app/khala/store/sharing/access.py",
        old=(
            "EXISTS (SELECT FROM users WHERE users.id = request.user_id AND users.blocked_at IS NULL)\n"
            '           AND {IS_PRESENT.format("request.user_id")} AND'
        ),
        new="true AND",
        tests=("tests/integration/test_access_store.py",),
        why="A signed token would act for an account that was deleted.",
    ),
    Mutant(
        name="a-revoked-link-cuts-no-follower",
        file="app/khala/store/sharing/sharing.py",
        old="[revoked.key_hash])\n        await change_access(connection, thread_id)\n",
        new="[revoked.key_hash])\n",
        tests=(
            "tests/integration/test_revocation.py::test_after_a_revocation_its_observers_get_nothing_in_any_process_and_others_miss_nothing",
        ),
        why="Observers who came by the link would follow on.",
    ),
    Mutant(
        name="a-removed-member-follows-on",
        file="app/khala/store/sharing/sharing.py",
        old=(
            'raise NotFound("This user is not a member of the thread.")\n'
            "        await change_access(connection, thread_id)\n"
        ),
        new='raise NotFound("This user is not a member of the thread.")\n',
        tests=(
            "tests/integration/test_revocation.py::test_after_a_revocation_its_observers_get_nothing_in_any_process_and_others_miss_nothing",
        ),
        why="A member who was removed would follow on.",
    ),
    Mutant(
        name="one-link-too-many",
        file="app/khala/store/sharing/sharing.py",
        old="scalar_one() >= MAX_LINKS:",
        new="scalar_one() > MAX_LINKS:",
        tests=("tests/integration/test_sharing.py::test_a_thread_has_at_most_fifty_valid_links",),
        why="A thread would have one link more than allowed.",
    ),
    Mutant(
        name="who-may-changed-unnoticed",
        file="app/khala/store/sharing/sharing.py",
        old="await threads.bump(connection, thread_id, access_id=func.gen_random_uuid())",
        new="await threads.bump(connection, thread_id)",
        tests=(
            "tests/integration/test_revocation.py::test_after_a_revocation_its_observers_get_nothing_in_any_process_and_others_miss_nothing",
        ),
        why="No command that takes access away would cut a follower.",
    ),
)
