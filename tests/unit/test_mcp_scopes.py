"""Scopes that servers name are stored within a bound, and never in part."""

from khala.tools.mcp.accounts.token_endpoint import MAX_SCOPE_CHARACTERS, bounded_scope


def test_scopes_over_the_bound_are_left_out_whole() -> None:
    whole = "x" * (MAX_SCOPE_CHARACTERS - 5)
    assert bounded_scope(f"{whole} read") == f"{whole} read"
    assert bounded_scope(f"{whole} read write") == f"{whole} read"
    assert bounded_scope(f"{whole} write") == whole
    assert bounded_scope("x" * (MAX_SCOPE_CHARACTERS + 1)) == ""
