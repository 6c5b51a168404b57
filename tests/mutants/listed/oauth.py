"""Mutants of OAuth for MCP clients."""

from tests.mutants.mutant import Mutant

ATTACKS = "tests/integration/test_oauth_attacks.py"

MUTANTS = (
    Mutant(
        name="oauth-code-of-another-client",
        file="app/khala/store/accounts/oauth_grants.py",
        old='is_current and request.client_id == row["client_id"] and row',
        new="is_current and row",
        tests=(f"{ATTACKS}::test_a_code_is_of_no_use_to_others",),
        why="Another client could exchange a code that it has seen.",
    ),
    Mutant(
        name="oauth-code-never-expires",
        file="app/khala/store/accounts/oauth_grants.py",
        old=' and row["expires_at"] > row["at"]',
        new="",
        tests=(f"{ATTACKS}::test_a_code_and_a_token_expire",),
        why="A code in the history of a browser could be exchanged later.",
    ),
    Mutant(
        name="oauth-reused-refresh-token-is-only-refused",
        file="app/khala/store/accounts/oauth_grants.py",
        old='if not is_current and row["refresh_hash"] is not None:',
        new="if False:",
        tests=(f"{ATTACKS}::test_a_refresh_token_that_is_used_again_ends_the_access",),
        why="A thief who was faster than the client would keep the access.",
    ),
    Mutant(
        name="oauth-token-of-another-resource",
        file="app/khala/store/accounts/oauth_grants.py",
        old='row is None or not oauth.is_within(resource, row["resource"]):',
        new="row is None:",
        tests=("tests/integration/test_mcp_oauth.py::test_a_client_of_one_group_has_no_access_to_another",),
        why="A client that may use one group of tools could use all.",
    ),
    Mutant(
        name="oauth-anybodys-grant-is-revoked",
        file="app/khala/store/accounts/oauth_grants.py",
        old="(oauth_grants.c.id == grant_id) & (oauth_grants.c.user_id == caller.user_id)",
        new="oauth_grants.c.id == grant_id",
        tests=(f"{ATTACKS}::test_only_the_account_itself_sees_and_ends_its_grants",),
        why="An account could end the access of another account's apps.",
    ),
    Mutant(
        name="oauth-form-without-proof",
        file="app/khala/api/oauth/authorization.py",
        old='form.get("proof", "").encode(), _proof(browser, access).encode()',
        new="b'', b''",
        tests=(f"{ATTACKS}::test_only_the_form_of_the_same_session_and_request_counts",),
        why="A form that was made for another account would count.",
    ),
    Mutant(
        name="oauth-redirect-to-any-host",
        file="app/khala/domain/oauth.py",
        old="(one.hostname, one.path, one.query) == (other.hostname, other.path, other.query)",
        new="(one.path, one.query) == (other.path, other.query)",
        tests=(f"{ATTACKS}::test_an_unregistered_redirect_uri_gets_an_error_page_and_no_redirect",),
        why="A code could be sent to another machine.",
    ),
    Mutant(
        name="oauth-plain-challenge",
        file="app/khala/domain/oauth.py",
        old='challenge is None or method != "S256" or not',
        new="challenge is None or not",
        tests=(f"{ATTACKS}::test_an_invalid_request_is_shown_and_sent_back_only_by_a_click",),
        why="A client that sends its verifier as the challenge would have no protection.",
    ),
    Mutant(
        name="oauth-write-without-consent",
        file="app/khala/api/oauth/authorization.py",
        old='access.consent.scopes if "write" in form else ("khala:read",)',
        new="access.consent.scopes",
        tests=(
            "tests/integration/test_mcp_oauth.py::test_a_person_may_withhold_changes_and_a_call_then_asks_for_them",
        ),
        why="An app could change what the person has withheld.",
    ),
    Mutant(
        name="oauth-documents-for-guests",
        file="app/khala/api/oauth/authorization.py",
        old="if browser is None and is_document_url",
        new="if False and is_document_url",
        tests=("tests/integration/test_oauth_documents.py",),
        why="Anybody could make the server request any URL.",
    ),
)
