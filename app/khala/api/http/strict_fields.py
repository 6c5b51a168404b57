"""Refuses unknown fields of JSON bodies and unknown query parameters.

Otherwise a misspelt field would silently have no effect: a limit would not apply, or a page would have the wrong size.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

from litestar import Request
from litestar.handlers import BaseRouteHandler

from khala.domain.errors import InvalidInput
from khala.domain.unknown_fields import MAX_NAME_CHARACTERS, UnknownField, find

MAX_LISTED = 20
"""Unknown names that one error lists."""
LENIENT = "lenient"
"""The option of a route that accepts unknown fields, because another protocol defines its requests."""

_PARAMETERS: WeakKeyDictionary[BaseRouteHandler, dict[str, str]] = WeakKeyDictionary()


def check_body(request: Request[Any, Any, Any], body: Any) -> None:
    """Raise `InvalidInput` if the decoded body has a field at any depth that the route's type does not have."""
    field = request.route_handler.parsed_data_field
    if field is not None and not request.route_handler.opt.get(LENIENT):
        refuse(find(body, field.annotation))


def check_query(request: Request[Any, Any, Any]) -> None:
    """Raise `InvalidInput` for a query parameter that the route does not have."""
    handler = request.route_handler
    # Litestar's own handler answers OPTIONS, and ignores parameters.
    if not request.scope["query_string"] or handler.opt.get(LENIENT) or request.method == "OPTIONS":
        return
    known = _parameters(request)
    unknown = (name for name in dict.fromkeys(request.query_params) if name not in known)
    refuse(_parameter(name, known) for name in unknown)


def refuse(unknown: Iterable[UnknownField]) -> None:
    """Raise `InvalidInput` if there are any. It lists the first 20."""
    errors = [(field.path, field.message) for field in islice(unknown, MAX_LISTED)]
    if errors:
        (path, message), *more = errors
        raise InvalidInput(message, path=path, more=more)


def sent_name(request: Request[Any, Any, Any], field: str) -> str:
    """Return the name by which a request sends the query parameter that the route's function calls `field`."""
    return next((name for name, known in _parameters(request).items() if known == field), field)


def _parameter(name: str, known: dict[str, str]) -> UnknownField:
    shown = name[:MAX_NAME_CHARACTERS]
    hints = known if len(name) <= MAX_NAME_CHARACTERS else {}
    return UnknownField(path=shown, name=shown, known=hints, kind="query parameter")


def _parameters(request: Request[Any, Any, Any]) -> dict[str, str]:
    """Return the route's query parameters with their names in its function. The cache avoids a slow search."""
    handler = request.route_handler
    known = _PARAMETERS.get(handler)
    if known is None:
        in_path: dict[str, Any] = dict.fromkeys(request.path_params)
        model = handler.create_kwargs_model(path_parameters=in_path)
        known = _PARAMETERS[handler] = {
            parameter.field_alias: parameter.field_name for parameter in model.expected_query_params
        }
    return known
