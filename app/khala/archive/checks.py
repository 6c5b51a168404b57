"""Checks an archive's lines beyond their types, so that the server can read everything that an import stores."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from khala.blobs.blob_service import MAX_PREVIEW_BYTES, plain_name
from khala.blobs.content_type import valid_media_type
from khala.domain import memories, parts
from khala.domain.access import Role
from khala.domain.agents import RESERVED_NAMES, AgentDefinition, AgentName
from khala.domain.chat import RunBudget, StoredRunOptions
from khala.domain.errors import KhalaError
from khala.domain.fold import Content
from khala.domain.memories import MemoryKind, MemoryScope
from khala.domain.packed_parts import check_layout
from khala.domain.parts import Finish
from khala.domain.stored_times import is_storable
from khala.domain.tools import MAX_RULES, ToolRule
from khala.store.tools import todos, workspace_files
from khala.store.tools.user_tools import UserToolDefinition
from khala.tools import paths, user_tools
from khala.tools.port import ToolError

MAX_PART_BYTES = 1 << 20
MAX_TEXTS: Mapping[tuple[str, str], int] = {
    ("user", "name"): 100,
    ("user", "email"): 254,
    ("message", "author_name"): 100,
    ("thread", "title"): 200,
    ("todo", "text"): todos.MAX_TODO_CHARACTERS,
    ("memory", "text"): memories.MAX_TEXT_CHARACTERS,
    ("memory", "keywords"): memories.MAX_KEYWORDS_CHARACTERS,
    ("memory", "agent"): memories.MAX_AGENT_CHARACTERS,
    ("identity", "issuer"): 1024,
    ("identity", "subject"): 1024,
}
"""Maximum characters of texts, as in the server's own routes."""


def check(kind: str, data: Any) -> None:
    """Raise `ValueError` or msgspec's `ValidationError` for an invalid line."""
    for (line_kind, field), max_characters in MAX_TEXTS.items():
        if line_kind == kind and len(getattr(data, field) or "") > max_characters:
            raise ValueError(f"{field} has more than {max_characters:,} characters.")
    for field in data.__struct_fields__:
        value = getattr(data, field)
        if isinstance(value, datetime) and not is_storable(value):
            raise ValueError(f"{field} must be a time from 1970 to 9998.")
    CHECKS.get(kind, _no_check)(data)


def _no_check(_: Any) -> None:
    pass


def _rules(data: Any) -> None:
    rules = _decode(data.tool_rules, tuple[ToolRule, ...] | None)
    if rules and len(rules) > MAX_RULES:
        raise ValueError(f"There are more than {MAX_RULES} rules.")


def _message(data: Any) -> None:
    _decode(data.content, Content | None)
    _decode(data.finish, Finish | None)


def _run(data: Any) -> None:
    _decode(data.options, StoredRunOptions)
    _decode(data.finish, Finish | None)
    if data.parts_layout is not None:
        check_layout(bytes.fromhex(data.parts_layout))


def _part(data: Any) -> None:
    if len(data.data) > MAX_PART_BYTES:
        raise ValueError(f"A part has at most {MAX_PART_BYTES:,} bytes.")
    parts.read(data.kind, data.data)


def _receipt(data: Any) -> None:
    _object("data")(data)
    if data.cost_usd is not None and not (data.cost_usd.is_finite() and data.cost_usd >= 0):
        raise ValueError("A cost must be a number of at least 0.")


def _object(*names: str) -> Callable[[Any], None]:
    """A check that each of these fields is a JSON object or absent."""

    def check_fields(data: Any) -> None:
        for name in names:
            _decode(getattr(data, name), dict[str, Any] | None)

    return check_fields


def _blob(data: Any) -> None:
    if data.size < 0 or len(data.sha256) != 64 or len(data.preview.encode()) > MAX_PREVIEW_BYTES:
        raise ValueError("This blob has an invalid size, hash or preview.")
    if valid_media_type(data.media_type) != data.media_type or plain_name(data.name) != data.name:
        raise ValueError("This blob has an invalid media type or name.")


def _folder_file(data: Any) -> None:
    if data.size < 0 or len(data.sha256) != 64 or not data.folder.strip():
        raise ValueError("This file of a folder has an invalid size, hash or folder.")
    if valid_media_type(data.media_type) != data.media_type or plain_name(data.name) != data.name:
        raise ValueError("This file of a folder has an invalid media type or name.")


def _member(data: Any) -> None:
    msgspec.convert(data.role, Role)


def _memory(data: Any) -> None:
    msgspec.convert(data.scope, MemoryScope)
    msgspec.convert(data.kind, MemoryKind)
    if not data.text.strip() or (data.scope == "agent") != (data.agent is not None):
        raise ValueError("A memory needs text; one of the scope agent has an agent, and others have none.")


def _file(data: Any) -> None:
    try:
        if paths.normalize(data.path) != data.path:
            raise ValueError(f"{data.path!r} is not a normalized path.")
    except ToolError as error:
        raise ValueError(str(error)) from error
    if len(data.content) > workspace_files.MAX_FILE_BYTES:
        raise ValueError(f"A file has at most {workspace_files.MAX_FILE_BYTES:,} bytes.")


def _tool(data: Any) -> None:
    fields = {name: getattr(data, name) for name in UserToolDefinition.__struct_fields__ if name != "parameters"}
    definition = msgspec.convert(fields | {"parameters": _decode(data.parameters, dict[str, Any])}, _StoredDefinition)
    try:
        user_tools.check_definition(definition, data.code, taken=frozenset())
    except KhalaError as error:
        raise ValueError(error.message) from error


class _StoredDefinition(UserToolDefinition, frozen=True, kw_only=True, rename=None):
    """A definition with fields named like the columns."""


def _agent(data: Any) -> None:
    fields = {name: getattr(data, name) for name in AgentDefinition.__struct_fields__}
    msgspec.convert(fields | {"budget": _decode(data.budget, RunBudget | None)}, AgentDefinition)
    msgspec.convert(data.name, AgentName)
    if data.version < 1 or data.name in RESERVED_NAMES:
        raise ValueError("This agent has an invalid name or version.")


def _decode(value: msgspec.Raw | None, kind: Any) -> Any:
    return None if value is None else msgspec.json.decode(value, type=kind)


CHECKS: Mapping[str, Callable[[Any], None]] = {
    "user": _rules,
    "thread": _rules,
    "message": _message,
    "run": _run,
    "part": _part,
    "receipt": _receipt,
    "approval": _object("args", "parameters", "edited_args"),
    "blob": _blob,
    "folder_file": _folder_file,
    "member": _member,
    "file": _file,
    "memory": _memory,
    "tool": _tool,
    "agent": _agent,
    "trace": _object("detail"),
}
"""The checks by kind of line."""
