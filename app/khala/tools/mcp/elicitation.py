"""Passes questions of MCP servers on to the person (`elicitation/create`): a form of flat fields, or a page."""

import re
from typing import Any
from urllib.parse import urlsplit

import mcp_types as types
import msgspec
import structlog

from khala.domain.errors import KhalaError
from khala.domain.flush_policy import replace_unstorable
from khala.tools.mcp.active_calls import ActiveCalls
from khala.tools.mcp.call_meta import IDEMPOTENCY_KEY_FIELD
from khala.tools.port import ToolError, UserQuestion

log = structlog.get_logger()

MAX_MESSAGE_CHARACTERS = 2_000
MAX_URL_CHARACTERS = 2_048
MAX_FIELDS = 20
MAX_OPTIONS = 100
"""Options of one field."""
MAX_SCHEMA_BYTES = 16 * 1024
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]")
"""Control characters, which can make a text look different from its content."""

ANNOTATIONS = frozenset({"type", "title", "description", "default"})
KEYWORDS = {
    "string": ANNOTATIONS | {"minLength", "maxLength", "pattern", "format", "enum", "enumNames", "oneOf"},
    "number": ANNOTATIONS | {"minimum", "maximum"},
    "integer": ANNOTATIONS | {"minimum", "maximum"},
    "boolean": ANNOTATIONS,
    "array": ANNOTATIONS | {"items", "minItems", "maxItems"},
}
"""The keywords of a field by its type."""
FORMATS = frozenset({"email", "uri", "date", "date-time"})


async def respond(
    server: str, calls: ActiveCalls, params: types.ElicitRequestParams
) -> types.ElicitResult | types.ErrorData:
    """Ask the person of the run to which the server's call belongs, or refuse with a reason."""
    key = (params.meta or {}).get(IDEMPOTENCY_KEY_FIELD)
    try:
        return await ask(server, calls, params, key if isinstance(key, str) else None)
    except ToolError as error:
        log.info("mcp_elicitation_refused", server=server, reason=error.message)
        return types.ErrorData(code=types.INVALID_PARAMS, message=error.message)
    except KhalaError as error:
        return types.ErrorData(code=types.INTERNAL_ERROR, message=error.message)


async def ask(
    server: str, calls: ActiveCalls, params: types.ElicitRequestParams, key: str | None
) -> types.ElicitResult:
    """Ask the person of the call with this key. Raises `ToolError` and `KhalaError`."""
    answer = await calls.ask(key, _question(server, params))
    return types.ElicitResult(action=answer.action, content=answer.content)


def _question(server: str, params: types.ElicitRequestParams) -> UserQuestion:
    """The question. Raises `ToolError` for one that Khala does not show."""
    message = replace_unstorable(CONTROL.sub("", params.message)).strip()
    if not 1 <= len(message) <= MAX_MESSAGE_CHARACTERS:
        raise ToolError(f"A message has 1 to {MAX_MESSAGE_CHARACTERS:,} characters.")
    if isinstance(params, types.ElicitRequestURLParams):
        return UserQuestion(source=server, message=message, url=_checked_url(params.url))
    return UserQuestion(source=server, message=message, schema=checked_schema(params.requested_schema))


def _checked_url(url: str) -> str:
    try:
        split = urlsplit(url)
        is_valid = split.scheme in ("http", "https") and bool(split.hostname) and not split.username
    except ValueError:
        is_valid = False
    if not is_valid or len(url) > MAX_URL_CHARACTERS or not url.isascii() or any(ord(one) <= 32 for one in url):
        raise ToolError(
            f"An address is one of HTTP, without credentials, and has at most {MAX_URL_CHARACTERS} characters."
        )
    return url


def checked_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a form: an object of flat fields, and no other. Raises `ToolError`."""
    from khala.tools.validation.arguments import schema_problem

    properties = schema.get("properties")
    if schema.get("type", "object") != "object" or not isinstance(properties, dict):
        raise ToolError("requestedSchema must be an object with properties.")
    if len(properties) > MAX_FIELDS:
        raise ToolError(f"A form has at most {MAX_FIELDS} fields.")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) and name in properties for name in required):
        raise ToolError("required must name properties.")
    for name, field in properties.items():
        _check_field(name, field)
    checked = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if len(msgspec.json.encode(checked)) > MAX_SCHEMA_BYTES:
        raise ToolError(f"A schema has at most {MAX_SCHEMA_BYTES:,} bytes.")
    problem = schema_problem(checked)
    if problem is not None:
        raise ToolError(problem)
    return checked


def _check_field(name: str, field: Any) -> None:
    kind = field.get("type") if isinstance(field, dict) else None
    if not isinstance(kind, str) or kind not in KEYWORDS or not field.keys() <= KEYWORDS[kind]:
        raise ToolError(f"{name[:100]}: a field is a string, number, integer, boolean, or a list of options.")
    if field.get("format", "email") not in FORMATS:
        raise ToolError(f"{name[:100]}: the format must be one of {', '.join(sorted(FORMATS))}.")
    options = field.get("items") if kind == "array" else field
    if kind == "array" and not (isinstance(options, dict) and ("enum" in options or "anyOf" in options)):
        raise ToolError(f"{name[:100]}: a list needs options.")
    for keyword in ("enum", "oneOf", "anyOf"):
        _check_options(name, options.get(keyword), has_titles=keyword != "enum")


def _check_options(name: str, options: Any, *, has_titles: bool) -> None:
    if options is None:
        return
    is_list = isinstance(options, list) and 1 <= len(options) <= MAX_OPTIONS
    values = (
        [one.get("const") if has_titles and isinstance(one, dict) else one for one in options] if is_list else [None]
    )
    if not all(isinstance(value, str) for value in values):
        raise ToolError(f"{name[:100]}: a field has 1 to {MAX_OPTIONS} options, which are texts.")
