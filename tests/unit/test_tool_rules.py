"""Rules for tools: matching patterns, and the resulting actions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from khala.domain.tools import STRICTNESS, RuleAction, ToolRule, ToolSpec, call_digest, decide_action, matches_any

ACTIONS: list[RuleAction] = ["allow", "ask", "deny"]
PATTERNS = st.sampled_from(["*", "read_*", "delete_file", "files__*", "files__delete_file", "other"])
LISTS = st.lists(st.builds(ToolRule, pattern=PATTERNS, action=st.sampled_from(ACTIONS)), max_size=5)


def spec(name: str = "delete_file", approval: RuleAction = "ask") -> ToolSpec:
    return ToolSpec(name=name, description="", parameters={"type": "object"}, approval=approval)


def rule(pattern: str, action: RuleAction) -> ToolRule:
    return ToolRule(pattern=pattern, action=action)


@pytest.mark.parametrize("name", ["delete_file", "files__delete_file", "disk__delete_file"])
def test_a_denied_tool_is_denied_on_every_server(name: str) -> None:
    assert decide_action(spec(name), [rule("delete_file", "deny")], []) == "deny"
    assert decide_action(spec(name), [rule("delete_*", "deny")], [[rule("*", "allow")]]) == "deny"


def test_a_pattern_with_a_servers_name_matches_only_that_server() -> None:
    assert decide_action(spec("files__delete_file"), [rule("files__*", "deny")], []) == "deny"
    assert decide_action(spec("delete_file"), [rule("files__*", "deny")], []) == "ask"
    assert matches_any("files__delete_file", ["files__*"])
    assert not matches_any("delete_file", ["files__*"])
    assert not matches_any("delete_file", [])


def test_without_rules_the_tools_own_policy_applies() -> None:
    assert [decide_action(spec(approval=own), [], [[], []]) for own in ACTIONS] == ACTIONS


def test_the_last_matching_rule_applies_and_thread_rules_come_after_user_rules() -> None:
    user, thread = [rule("*", "deny"), rule("delete_file", "allow")], [rule("delete_*", "ask")]
    assert decide_action(spec(), [], [user]) == "allow"
    assert decide_action(spec(), [], [user, thread]) == "ask"
    assert decide_action(spec("read_file"), [], [user, thread]) == "deny"


@given(operator=LISTS, user=LISTS, thread=LISTS)
def test_no_rule_loosens_the_operators_rules(
    operator: list[ToolRule], user: list[ToolRule], thread: list[ToolRule]
) -> None:
    tool = spec("files__delete_file")
    strictest = max((STRICTNESS[rule_.action] for rule_ in operator if rule_.matches(tool.name)), default=0)
    found = decide_action(tool, operator, [user, thread])
    assert STRICTNESS[found] == max(strictest, STRICTNESS[decide_action(tool, [], [user, thread])])


def test_the_digest_of_a_call_is_the_same_in_whatever_order_its_arguments_come() -> None:
    first, other = {"path": "a", "content": {"x": 1, "y": 2}}, {"content": {"y": 2, "x": 1}, "path": "a"}
    assert call_digest("write_file", first) == call_digest("write_file", other)
    assert (
        len(
            {
                call_digest("write_file", first),
                call_digest("edit_file", first),
                call_digest("write_file", first | {"path": "b"}),
            }
        )
        == 3
    )
