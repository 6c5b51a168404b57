"""Mutants of requesters, invitations, request identities and bounds on what clients send in `app/khala/domain`."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="a-requester-keeps-their-other-keys",
        file="app/khala/domain/access.py",
        old="return msgspec.structs.replace(caller, **others) if caller.user_id == user_id else None",
        new="return caller if caller.user_id == user_id else None",
        tests=("tests/unit/test_access.py::test_the_requester_of_a_run_is_its_user_or_without_one_the_same_key",),
        why="A requester could edit arguments by a key that they did not ask by.",
    ),
    Mutant(
        name="a-key-that-does-not-fit-hides-the-link",
        file="app/khala/domain/access.py",
        old="    if hashes_match(anon_key_hash, caller.anon_key_hash):\n        secret",
        new="    if caller.anon_key_hash is not None:\n        secret",
        tests=("tests/unit/test_access.py::test_the_key_that_grants_access_is_the_requesters_key",),
        why="A run that was asked for by a link would go on after the link is revoked.",
    ),
    Mutant(
        name="an-open-invitation-lets-write",
        file="app/khala/domain/access.py",
        old='invited: Role | None = "viewer" if facts.invited else None',
        new='invited: Role | None = "editor" if facts.invited else None',
        tests=("tests/unit/test_access.py::test_an_invitation_grants_its_user_only_read_access",),
        why="A user could write in a thread before they accept to join it.",
    ),
    Mutant(
        name="one-invitation-more-of-a-sender",
        file="app/khala/domain/invitations.py",
        old="counts.from_sender >= MAX_FROM_ONE_SENDER",
        new="counts.from_sender > MAX_FROM_ONE_SENDER",
        tests=(
            "tests/integration/test_invitations.py::test_a_users_open_invitations_are_limited_by_sender_and_in_total",
        ),
        why="One sender could have one more open invitation of a user than the limit says.",
    ),
    Mutant(
        name="a-retry-joins-what-another-token-asked-for",
        file="app/khala/domain/idempotency.py",
        old='scope = b"" if key is not None or caller.credential is None else caller.credential.bytes',
        new='scope = b""',
        tests=(
            "tests/unit/test_idempotency.py::test_the_identity_depends_on_everything_that_changes_the_request_and_nothing_else",
        ),
        why="A retry of one program would get the answer to the equal request of another program.",
    ),
    Mutant(
        name="a-process-that-never-began-ends-its-run",
        file="app/khala/domain/isolation_policy.py",
        old="IsolatedOutcome.INTERRUPTED if began and exit_code != 0 else",
        new="IsolatedOutcome.INTERRUPTED if exit_code != 0 else",
        tests=(
            "tests/unit/test_isolation.py::test_a_child_process_that_never_started_or_released_the_run_counts_no_loss",
        ),
        why="A process that can't be started would end a harmless run as deadly.",
    ),
    Mutant(
        name="one-shared-loss-more",
        file="app/khala/domain/isolation_policy.py",
        old="return lost >= MAX_SHARED_LOSSES",
        new="return lost > MAX_SHARED_LOSSES",
        tests=("tests/unit/test_isolation.py::test_a_run_is_isolated_from_its_second_loss_on",),
        why="A deadly run would end one more executor with all of its other runs.",
    ),
    Mutant(
        name="a-fast-start-buys-a-long-silence",
        file="app/khala/domain/transfer_rate.py",
        old="return min(self.max_pause, self.max_pause + received / self.rate - waited, self.max_seconds - waited)",
        new="return min(self.max_pause + received / self.rate - waited, self.max_seconds - waited)",
        tests=(
            "tests/unit/test_transfer_rate.py::test_a_silent_client_is_rejected_after_a_pause_whatever_it_has_sent",
        ),
        why="A client that has sent 20 MiB could hold its connection silently for 20 minutes.",
    ),
    Mutant(
        name="names-that-end-alike-are-allowed",
        file="app/khala/domain/allowed_hosts.py",
        old="name.endswith(allowed[1:])",
        new="name.endswith(allowed[2:])",
        tests=("tests/unit/test_hosts.py::test_configured_hosts_replace_the_public_one",),
        why="A stranger's domain, as evilexample.com, could rebind its name to a server of *.example.com.",
    ),
    Mutant(
        name="unknown-fields-hide-behind-the-first-item",
        file="app/khala/domain/unknown_fields.py",
        old="for index, item in enumerate(value):",
        new="for index, item in enumerate(value[:1]):",
        tests=("tests/unit/test_unknown_fields.py::test_fields_that_a_type_does_not_have_are_found_where_they_are",),
        why="A misspelt field in the second of several items would be ignored silently.",
    ),
    Mutant(
        name="references-multiply-within-a-list",
        file="app/khala/domain/json_schemas.py",
        old="sum(followed[inner.index] for inner in node.same)",
        new="sum(followed[inner.index] for inner in node.references)",
        tests=("tests/unit/test_tool_arguments.py::test_references_that_double_are_refused",),
        why="A small schema whose references double could keep a process busy for hours.",
    ),
    Mutant(
        name="booleans-are-no-parts-of-a-schema",
        file="app/khala/domain/json_schemas.py",
        old="parts += counts and isinstance(value, dict | bool)",
        new="parts += counts and isinstance(value, dict)",
        tests=(
            "tests/unit/test_json_schemas.py::test_the_subschemas_of_a_schema_are_limited_and_constants_do_not_count",
        ),
        why="A schema could have any number of parts, as long as they are booleans.",
    ),
)
