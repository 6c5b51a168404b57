"""Mutants of memories and of searches by meaning in `app/khala/store`."""

from tests.mutants.mutant import Mutant

ISOLATION = "tests/laws/test_memory_isolation.py::test_memories_are_isolated_moved_and_erased_in_every_history"
BY_MEANING = "tests/integration/test_search_by_meaning.py::"

MUTANTS = (
    Mutant(
        name="a-member-is-told-personal-memories",
        file="app/khala/store/memories/spaces.py",
        old="       AND NOT EXISTS (SELECT FROM memberships WHERE memberships.thread_id = threads.id)\n",
        new="",
        tests=(ISOLATION,),
        why="Members would read the owner's personal memories in the answers of a shared thread.",
    ),
    Mutant(
        name="an-invited-person-is-told-personal-memories",
        file="app/khala/store/memories/spaces.py",
        old=(
            "       AND NOT EXISTS (SELECT FROM invitations\n"
            "                       WHERE invitations.thread_id = threads.id AND invitations.declined_at IS NULL)\n"
        ),
        new="",
        tests=(ISOLATION,),
        why="Somebody who is invited would read the owner's personal memories.",
    ),
    Mutant(
        name="a-holder-of-a-link-is-told-personal-memories",
        file="app/khala/store/memories/spaces.py",
        old=(
            "(visibility = 'private'\n"
            "       AND NOT EXISTS (SELECT FROM memberships WHERE memberships.thread_id = threads.id)\n"
            "       AND NOT EXISTS (SELECT FROM invitations\n"
            "                       WHERE invitations.thread_id = threads.id AND invitations.declined_at IS NULL)\n"
            "       AND NOT EXISTS (SELECT FROM share_links\n"
            "                       WHERE share_links.thread_id = threads.id"
            " AND coalesce(expires_at > clock_timestamp(), true))\n"
        ),
        new=(
            "(visibility <> 'public'\n"
            "       AND NOT EXISTS (SELECT FROM memberships WHERE memberships.thread_id = threads.id)\n"
            "       AND NOT EXISTS (SELECT FROM invitations\n"
            "                       WHERE invitations.thread_id = threads.id AND invitations.declined_at IS NULL)\n"
        ),
        tests=(ISOLATION,),
        why="Holders of a link would read the owner's personal memories.",
    ),
    Mutant(
        name="everybody-is-told-personal-memories",
        file="app/khala/store/memories/spaces.py",
        old="(visibility = 'private'\n",
        new="(true\n",
        tests=(ISOLATION,),
        why="A public thread would show the owner's personal memories.",
    ),
    Mutant(
        name="a-run-of-another-person-uses-the-owners-memories",
        file="app/khala/store/memories/spaces.py",
        old="SELECT owner_id IS NOT DISTINCT FROM $2 AND (visibility",
        new="SELECT ($2::uuid IS NULL OR true) AND (visibility",
        tests=(ISOLATION,),
        why="A run would be told memories of a person who has not asked.",
    ),
    Mutant(
        name="a-claim-leaves-the-vectors",
        file="app/khala/store/memories/memories.py",
        old='    await vectors.delete(driver, [row["id"] for row in rows])\n    for row',
        new="    for row",
        tests=(ISOLATION,),
        why="A claimed memory would be found in the guest's thread, too.",
    ),
    Mutant(
        name="anybody-forgets-a-memory",
        file="app/khala/store/memories/memories.py",
        old="WHERE id = $1 AND owner_id = $2 FOR UPDATE",
        new="WHERE id = $1 AND ($2::uuid IS NULL OR true) FOR UPDATE",
        tests=(ISOLATION,),
        why="Whoever knows an id could change memories of others.",
    ),
    Mutant(
        name="a-search-finds-memories-of-deleted-threads",
        file="app/khala/store/memories/search.py",
        old="    space_id = ANY ((SELECT spaces FROM asking)::uuid[]) AND {IN_USE} AND {IS_ERASED} IS NOT TRUE\n",
        new="    space_id = ANY ((SELECT spaces FROM asking)::uuid[]) AND {IN_USE}\n",
        tests=(ISOLATION,),
        why="Until the purge, a deleted thread would go on to answer questions.",
    ),
    Mutant(
        name="a-reset-leaves-vectors-of-passages",
        file="app/khala/store/operations/reset_purge.py",
        old="        if await passage_vectors.exist(driver):\n",
        new="        if False:\n",
        tests=(BY_MEANING + "test_resets_and_deletions_take_the_vectors_also_during_a_batch",),
        why="Vectors of deleted messages would stay for ever.",
    ),
    Mutant(
        name="vectors-of-an-older-model-stay",
        file="app/khala/store/search/passage_queue.py",
        old="        await driver.execute(DELETE_OUTDATED, found, generation)\n",
        new="",
        tests=(BY_MEANING + "test_a_changed_model_begins_a_new_generation",),
        why="Each change of the model would double the space of the vectors.",
    ),
    Mutant(
        name="all-messages-are-embedded",
        file="app/khala/store/search/passage_queue.py",
        old="    {IS_SEARCHED} AND messages.created_at > now() - {{days}} * interval '1 day' AND NOT EXISTS (\n",
        new="    {IS_SEARCHED} AND coalesce({{days}}::int, 0) >= 0 AND NOT EXISTS (\n",
        tests=(BY_MEANING + "test_messages_from_before_are_embedded_within_the_days_that_the_operator_chose",),
        why="The operator would pay for messages of all times.",
    ),
    Mutant(
        name="another-passage-is-shown",
        file="app/khala/search/search_service.py",
        old=', by="meaning", piece=near.piece)',
        new=', by="meaning", piece=0)',
        tests=(BY_MEANING + "test_the_passage_that_is_near_is_shown",),
        why="A long message would be found, and its beginning shown instead of what fits.",
    ),
)
