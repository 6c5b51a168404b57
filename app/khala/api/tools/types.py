"""Request and response bodies of tools, and the events of loading a repository."""

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from khala.api.types import ApiStruct
from khala.domain.tools import MAX_RULES, CostClass, RuleAction, ToolPermission, ToolRule
from khala.store.tools.user_tools import ToolLanguage
from khala.tools.http_client import MAX_URL_CHARACTERS
from khala.tools.paths import MAX_PATH_CHARACTERS
from khala.tools.repositories import LoadedRepository
from khala.tools.repositories.addresses import MAX_REF_CHARACTERS
from khala.tools.repositories.loader import LoadStage
from khala.tools.user_tools import MAX_CODE_BYTES


class OfferedTool(ApiStruct, frozen=True, kw_only=True):
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
    title: str | None = None
    """The tool's name for people. Only tools of MCP servers have one."""
    destructive: bool = False
    """Whether a call may delete or overwrite what cannot be restored; absent if nothing says so."""


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


class NewRepository(ApiStruct, frozen=True, kw_only=True):
    """A repository to load: the address of its page, by default of its default branch, into a folder."""

    url: Annotated[str, Meta(min_length=1, max_length=MAX_URL_CHARACTERS)]
    ref: Annotated[str, Meta(min_length=1, max_length=MAX_REF_CHARACTERS)] | None = None
    path: Annotated[str, Meta(max_length=MAX_PATH_CHARACTERS)] | None = None
    into: Annotated[str, Meta(min_length=1, max_length=MAX_PATH_CHARACTERS)] | None = None


class RepositoryProgress(ApiStruct, frozen=True, kw_only=True, tag_field="type", tag="progress"):
    """How far a load is: the bytes that are downloaded, or the files that are read or are being stored."""

    stage: LoadStage
    bytes: int = 0
    files: int = 0


class RepositoryLoaded(ApiStruct, frozen=True, kw_only=True, tag_field="type", tag="loaded"):
    """The repository is in the workspace."""

    repository: LoadedRepository


class RepositoryFailed(ApiStruct, frozen=True, kw_only=True, tag_field="type", tag="failed"):
    """The repository could not be loaded, and the workspace is unchanged."""

    code: str
    message: str
    retry_after_seconds: int | None = None


RepositoryEvent: TypeAlias = RepositoryProgress | RepositoryLoaded | RepositoryFailed
