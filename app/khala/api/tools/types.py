"""Request and response bodies of tools."""

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta

from khala.api.types import ApiStruct
from khala.domain.tools import MAX_RULES, CostClass, RuleAction, ToolPermission, ToolRule
from khala.store.tools.user_tools import ToolLanguage
from khala.tools.user_tools import MAX_CODE_BYTES


class OfferedTool(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    """A tool that the caller may use. `action` is the result of all rules for it. `timeout` is in seconds."""

    name: str
    description: str
    parameters: dict[str, Any]
    permissions: list[ToolPermission]
    timeout: float
    cost: CostClass
    idempotent: bool
    source: str
    action: RuleAction


class NewTool(ApiStruct, frozen=True, kw_only=True):
    """A tool to create: a program that reads its arguments as JSON from stdin and writes its result to stdout."""

    name: str
    description: str
    parameters: dict[str, Any]
    language: ToolLanguage
    code: Annotated[str, Meta(max_length=MAX_CODE_BYTES)]
    permissions: Annotated[Sequence[ToolPermission], Meta(max_length=4)] = ()
    timeout: int = 30
    idempotent: bool = False


class ToolDecision(ApiStruct, frozen=True, kw_only=True):
    """The user's decision on a tool of their own. With `digest`, it applies only to the version that they saw."""

    approved: bool
    digest: Annotated[str, Meta(max_length=64)] | None = None


class ToolRuleList(ApiStruct, frozen=True, kw_only=True):
    """Rules for tool calls. The last rule that matches applies."""

    items: Annotated[list[ToolRule], Meta(max_length=MAX_RULES)]
