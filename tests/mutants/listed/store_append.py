"""Mutants of the append and the writer in `app/khala/store`."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="appends-are-not-fenced",
        file="app/khala/store/runs/leases.py",
        old="\"(run.thread_id, run.epoch, run.status) IS NOT DISTINCT FROM ({0}.thread_id, {0}.epoch, 'running')\"",
        new="\"(run.thread_id, run.status) IS NOT DISTINCT FROM ({0}.thread_id, 'running')\"",
        tests=(
            "tests/integration/test_writer.py::test_a_writer_whose_lease_was_taken_over_is_fenced_off",
            "tests/integration/test_leases.py::test_a_heartbeat_prolongs_only_the_leases_that_are_held",
        ),
        why="An executor that was taken for dead would write beside the one that took over.",
    ),
    Mutant(
        name="appends-after-the-end",
        file="app/khala/store/runs/leases.py",
        old="\"(run.thread_id, run.epoch, run.status) IS NOT DISTINCT FROM ({0}.thread_id, {0}.epoch, 'running')\"",
        new='"(run.thread_id, run.epoch) IS NOT DISTINCT FROM ({0}.thread_id, {0}.epoch)"',
        tests=("tests/integration/test_writer.py::test_after_the_finish_nothing_changes",),
        why="Parts would come after the finish.",
    ),
    Mutant(
        name="appends-to-a-run-of-another-thread",
        file="app/khala/store/runs/leases.py",
        old="\"(run.thread_id, run.epoch, run.status) IS NOT DISTINCT FROM ({0}.thread_id, {0}.epoch, 'running')\"",
        new="\"(run.epoch, run.status) IS NOT DISTINCT FROM ({0}.epoch, 'running')\"",
        tests=("tests/integration/test_writer.py::test_a_writer_for_one_thread_cannot_touch_a_run_of_another",),
        why="Parts could be written without the lock of their thread.",
    ),
    Mutant(
        name="a-repeated-append-bumps-the-revision",
        file="app/khala/store/runs/parts.py",
        old=") IS NULL)\n        ORDER BY id FOR NO KEY UPDATE SKIP LOCKED\n    ) AS due WHERE",
        new=") IS NULL OR true)\n        ORDER BY id FOR NO KEY UPDATE SKIP LOCKED\n    ) AS due WHERE",
        tests=(
            "tests/laws/test_store.py::test_repeating_an_append_any_number_of_times_changes_nothing",
            "tests/integration/test_writer.py::test_an_append_says_how_many_parts_were_new",
        ),
        why="A retry after a lost commit would make a revision that nothing bears.",
    ),
    Mutant(
        name="a-locked-thread-delays-all-text",
        file="app/khala/store/runs/parts.py",
        old="ORDER BY id FOR NO KEY UPDATE SKIP LOCKED\n    ) AS due WHERE",
        new="ORDER BY id FOR NO KEY UPDATE\n    ) AS due WHERE",
        tests=("tests/integration/test_writer.py::test_a_locked_thread_delays_no_text_of_other_threads",),
        why="The text of all threads would wait for the lock of one.",
    ),
    Mutant(
        name="a-run-of-a-locked-thread-is-lost",
        file="app/khala/store/runs/parts.py",
        old='busy = {row["run_id"] for row in left_out if not row["stored"]} - new.keys()',
        new="busy: set[UUID] = set()",
        tests=("tests/integration/test_writer.py::test_a_locked_thread_delays_no_text_of_other_threads",),
        why="An executor would give up a run because its thread was locked for a moment.",
    ),
    Mutant(
        name="the-end-has-no-revision",
        file="app/khala/store/runs/endings.py",
        old="seq = ended.seq, revision = threads.revision, updated_at",
        new="seq = ended.seq, updated_at",
        tests=("tests/laws/test_store.py::test_a_snapshot_and_the_deltas_after_it_give_every_later_snapshot",),
        why="Observers would not be notified of the end of the answer.",
    ),
    Mutant(
        name="the-end-of-a-run-wakes-nobody",
        file="app/khala/store/runs/endings.py",
        old="        await notify_executors(driver)\n",
        new="        pass\n",
        tests=("tests/integration/test_notifications.py::test_observers_and_executors_are_notified",),
        why="The next queued answer would begin a sweep later.",
    ),
    Mutant(
        name="an-append-tells-nobody",
        file="app/khala/store/runs/parts.py",
        old="            await notify_threads(driver, revisions, executors=any(batch.ending for batch in written))\n",
        new="            pass\n",
        tests=("tests/integration/test_notifications.py::test_observers_are_notified",),
        why="Observers in other processes would see text at the next poll only.",
    ),
    Mutant(
        name="an-append-wakes-no-executor",
        file="app/khala/store/runs/parts.py",
        old="executors=any(batch.ending for batch in written))",
        new="executors=False)",
        tests=("tests/integration/test_notifications.py::test_observers_and_executors_are_notified",),
        why="After an answer, the next queued one would begin a sweep later.",
    ),
    Mutant(
        name="an-end-waits-for-a-locked-user",
        file="app/khala/store/runs/endings.py",
        old="(SELECT user_id FROM listed) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED",
        new="(SELECT user_id FROM listed) ORDER BY id FOR NO KEY UPDATE",
        tests=(
            "tests/integration/test_locked_endings.py::test_locked_rows_that_change_with_the_end_of_a_run_delay_neither_text_nor_ends_of_others",
        ),
        why="A locked user would delay the text of all runs of the process.",
    ),
    Mutant(
        name="an-append-names-too-many-threads",
        file="app/khala/store/postgres/notifications.py",
        old="if len(ids) <= MAX_IDS_PER_PAYLOAD else EVERYTHING",
        new="if len(ids) <= 4 * MAX_IDS_PER_PAYLOAD else EVERYTHING",
        tests=(
            "tests/integration/test_notifications.py::test_a_commit_of_more_runs_than_fit_into_a_notification_notifies_all",
        ),
        why="A commit of many runs would fail: Postgres takes 8,000 bytes of a notification.",
    ),
    Mutant(
        name="a-zombies-batch-counts-as-written",
        file="app/khala/store/runs/parts.py",
        old=("run.thread_id = lease.thread_id AND run.epoch = lease.epoch\n    LEFT JOIN message_parts"),
        new=("run.thread_id = lease.thread_id\n    LEFT JOIN message_parts"),
        tests=("tests/integration/test_writer.py::test_repeating_a_batch_after_a_take_over_reports_a_lost_lease",),
        why="An executor that was replaced would hold its run for its own.",
    ),
    Mutant(
        name="an-end-settles-no-budget",
        file="app/khala/store/runs/endings.py",
        old="    await ledger.settle(driver, settled)\n",
        new="",
        tests=("tests/integration/test_budgets.py::test_whatever_ends_a_run_settles_it_once",),
        why="The reservation of a run would never be released.",
    ),
    Mutant(
        name="an-answer-leaves-nobody-unread",
        file="app/khala/store/runs/endings.py",
        old="[run.thread_id for run in settled], unread=True)",
        new="[run.thread_id for run in settled])",
        tests=("tests/integration/test_account_feed.py::test_each_listed_thread_has_its_pending_items_for_its_reader",),
        why="A finished answer would not show as unread.",
    ),
    Mutant(
        name="a-repeated-part-is-inserted-again",
        file="app/khala/store/runs/parts.py",
        old="run_id = lease.run_id AND seq >= lease.seq AND thread_id",
        new="run_id = lease.run_id AND seq > lease.seq AND thread_id",
        tests=(
            "tests/laws/test_store.py::test_repeating_an_append_any_number_of_times_changes_nothing",
            "tests/integration/test_writer.py::test_an_outage_during_a_flush_loses_no_text_and_leaves_no_gap",
            "tests/integration/test_writer.py::test_parts_of_a_batch_that_are_stored_already_are_not_inserted_again",
        ),
        why="A retry of a batch of which a part is stored would fail for ever.",
    ),
    Mutant(
        name="parts-from-a-seq-on-repeat-it",
        file="app/khala/store/runs/parts.py",
        old="run_id = $1 AND seq > $2 AND",
        new="run_id = $1 AND seq >= $2 AND",
        tests=("tests/integration/test_api_reads.py::test_parts_are_read_from_any_seq_on",),
        why="A reader who requests the following parts would get a part twice.",
    ),
    Mutant(
        name="the-end-comes-before-the-last-parts",
        file="app/khala/store/runs/run_buffer.py",
        old="if self._ending is None or self._unwritten:",
        new="if self._ending is None:",
        tests=(
            "tests/integration/test_writer.py::test_a_run_ends_with_its_last_parts_however_many_transactions_they_take",
        ),
        why="A run that was dammed up would end without its last text.",
    ),
    Mutant(
        name="held-text-is-not-awaited",
        file="app/khala/store/runs/run_buffer.py",
        old="        has_text = deliver()\n",
        new="        has_text = deliver() and False\n",
        tests=("tests/integration/test_writer.py::test_a_commit_includes_the_held_text_of_runs_that_are_due_soon",),
        why="Text that was read for a commit would miss it, and wait for its age again.",
    ),
    Mutant(
        name="only-fifty-due-runs-at-once",
        file="app/khala/store/runs/group_commit.py",
        old="(at > now and len(due) >= MAX_EARLY_RUNS)",
        new="len(due) >= MAX_EARLY_RUNS",
        tests=("tests/integration/test_writer.py::test_a_commit_includes_all_due_runs_and_a_bounded_number_of_others",),
        why="Runs that are due would wait for the next commit.",
    ),
    Mutant(
        name="nothing-is-taken-along",
        file="app/khala/store/runs/group_commit.py",
        old="max(MIN_COMMIT_INTERVAL_SECONDS, EARLY_WINDOW * self._policy.seconds)",
        new="MIN_COMMIT_INTERVAL_SECONDS",
        tests=("tests/integration/test_writer.py::test_a_commit_includes_buffers_that_are_due_soon_and_no_others",),
        why="Each run would be written by itself, and the work per part would not fall.",
    ),
    Mutant(
        name="calls-of-the-last-batch-stay-open",
        file="app/khala/store/runs/run_buffer.py",
        old="cancelled_statuses(fold(self._content, [part for part, _, _ in self._unwritten]))",
        new="cancelled_statuses(self._content)",
        tests=("tests/integration/test_writer.py::test_calls_that_are_not_written_yet_are_cancelled_with_their_run",),
        why="A canceled run would leave a card that runs for ever.",
    ),
    Mutant(
        name="a-lost-lease-is-told-to-nobody",
        file="app/khala/store/runs/run_buffer.py",
        old=("            self._lost = True\n            self._on_lost()\n"),
        new="            self._lost = True\n",
        tests=("tests/integration/test_writer.py::test_a_writer_whose_lease_was_taken_over_is_fenced_off",),
        why="An executor would request text from a model that is never stored.",
    ),
    Mutant(
        name="whoever-waits-is-not-told-of-a-lost-lease",
        file="app/khala/store/runs/run_buffer.py",
        old=("        await self._idle.wait()\n        if self._lost:\n            raise LeaseLost\n"),
        new="        await self._idle.wait()\n",
        tests=("tests/integration/test_writer.py::test_a_writer_whose_lease_was_taken_over_is_fenced_off",),
        why="A tool would be run though its `running` was never committed.",
    ),
    Mutant(
        name="a-fault-of-one-run-costs-the-others",
        file="app/khala/store/runs/group_commit.py",
        old=(
            "        except asyncpg.PostgresError:\n"
            "            await self._write_separately(buffers)\n"
            "            return\n"
        ),
        new=(
            "        except asyncpg.PostgresError:\n"
            "            for buffer in buffers:\n"
            "                self._acknowledge(buffer, held=False)\n"
            "            return\n"
        ),
        tests=("tests/integration/test_writer.py::test_a_run_whose_rows_postgres_refuses_affects_no_other_run",),
        why="One run whose rows are refused would end all runs of its commit.",
    ),
    Mutant(
        name="the-bus-and-notify-both-tell",
        file="app/khala/store/runs/group_commit.py",
        old="notify=bus is None)",
        new="notify=True)",
        tests=(
            "tests/integration/test_nats.py::test_a_group_commit_is_published_by_nats_alone_and_by_notify_during_an_outage",
        ),
        why="Commits would wait for each other's NOTIFY though a bus tells of them.",
    ),
    Mutant(
        name="unused-reservations-stay",
        file="app/khala/store/streams/byte_reservations.py",
        old="        await driver.execute(TAKE_BACK, space.id, names)\n",
        new="",
        tests=(
            "tests/integration/test_stream_writer.py::test_appends_to_many_streams_use_the_limit_of_all_together_to_its_last_bytes",
        ),
        why="Appends would be refused while other streams keep what they have no use for.",
    ),
)
