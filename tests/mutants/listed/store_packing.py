"""Mutants of packed parts in `app/khala/domain` and `app/khala/store`."""

from tests.mutants.mutant import Mutant

TESTS = "tests/integration/test_packed_parts.py::"
LAWS = "tests/laws/test_packed_parts.py::"

MUTANTS = (
    Mutant(
        name="packing-keeps-no-revision",
        file="app/khala/store/runs/packed_parts.py",
        old="SET packed_revision = greatest(packed_revision, packed.revision)",
        new="SET packed_revision = packed_revision",
        tests=(f"{TESTS}test_an_observer_with_an_old_cursor_gets_a_snapshot_and_a_younger_one_a_delta",),
        why="An observer with an old cursor would get a delta without the text of packed parts.",
    ),
    Mutant(
        name="a-cursor-before-packed-parts-gets-a-delta",
        file="app/khala/store/threads/thread_feed.py",
        old="greatest(threads.reset_revision, threads.packed_revision) AS oldest_revision",
        new="threads.reset_revision AS oldest_revision",
        tests=(f"{TESTS}test_an_observer_with_an_old_cursor_gets_a_snapshot_and_a_younger_one_a_delta",),
        why="A delta would be served from a cursor whose parts are gone.",
    ),
    Mutant(
        name="runs-are-packed-at-any-age",
        file="app/khala/store/runs/packed_parts.py",
        old="('final', 'error', 'canceled') AND runs.finished_at < clock_timestamp() - $4::interval",
        new="('final', 'error', 'canceled') AND $4::interval IS NOT NULL",
        tests=(f"{TESTS}test_only_runs_that_ended_long_ago_are_packed",),
        why="Observers that resume within days would get snapshots instead of deltas.",
    ),
    Mutant(
        name="packing-waits-for-locks",
        file="app/khala/store/runs/packed_parts.py",
        old="ORDER BY id FOR NO KEY UPDATE SKIP LOCKED",
        new="ORDER BY id FOR NO KEY UPDATE",
        tests=(f"{TESTS}test_a_thread_that_is_locked_is_packed_the_next_time",),
        why="The purge would wait for one thread, and hold the locks of others meanwhile.",
    ),
    Mutant(
        name="packed-parts-are-not-compared-with-their-digest",
        file="app/khala/store/operations/answer_checks.py",
        old='if digest(unpacked) != answer["parts_digest"]:',
        new='if not answer["parts_digest"]:',
        tests=(f"{TESTS}test_verify_reports_a_damaged_packed_run_and_no_other",),
        why="A changed text would fold to itself, and verify would not notice.",
    ),
    Mutant(
        name="text-is-dropped-though-the-content-has-another",
        file="app/khala/domain/packed_parts.py",
        old="len(text) if is_whole and text is not None else",
        new="len(text) if text is not None else",
        tests=(f"{LAWS}test_parts_whose_text_is_not_that_of_the_content_keep_it",),
        why="The text of a damaged answer would be lost, and with it the evidence.",
    ),
    Mutant(
        name="the-digest-is-no-chain",
        file="app/khala/domain/packed_parts.py",
        old="hashlib.sha256(last + b",
        new="hashlib.sha256(b",
        tests=(f"{LAWS}test_a_lost_exchanged_or_repeated_part_changes_the_digest",),
        why="Only the last part would be covered.",
    ),
    Mutant(
        name="a-partition-with-parts-is-dropped",
        file="app/khala/store/operations/part_partitions.py",
        old="        return False\n    await driver.execute(f'DROP",
        new="        pass\n    await driver.execute(f'DROP",
        tests=("tests/integration/test_partitions.py::test_a_partition_with_one_late_part_is_not_dropped",),
        why="The parts of a run that waits for approval would be lost.",
    ),
)
