"""Refuses what a request names and no route knows: unknown fields of a JSON body, unknown query parameters.

Otherwise a misspelt field would be a limit that does not hold, or a page of the wrong size, without a word.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

from litestar import Request
from litestar.handlers import BaseRouteHandler

from khala.domain.errors import InvalidInput
from khala.domain.unknown_fields import MAX_NAME_CHARACTERS, UnknownField, find, nearest_name

MAX_TOLD = 20
"""Unknown names that one answer lists."""
LENIENT = "lenient"
"""The option of a route that takes what it does not know: others' protocols say what travels there."""

_PARAMETERS: WeakKeyDictionary[BaseRouteHandler, dict[str, None]] = WeakKeyDictionary()


def check_body(request: Request[Any, Any, Any], body: Any) -> None:
    """Raise `InvalidInput` if a JSON body, decoded, has a field at any depth that the route's type does not have."""
    field = request.route_handler.parsed_data_field
    if field is not None and not request.route_handler.opt.get(LENIENT):
        refuse(find(body, field.annotation))


def check_query(request: Request[Any, Any, Any]) -> None:
    """Raise `InvalidInput` for a query parameter that the route does not have."""
    handler = request.route_handler
    # Of what OPTIONS answers, nothing depends on parameters, and its handler is the framework's own.
    if not request.scope["query_string"] or handler.opt.get(LENIENT) or request.method == "OPTIONS":
        return
    known = _parameters(request)
    unknown = (name for name in dict.fromkeys(request.query_params) if name not in known)
    refuse(_parameter(name, nearest_name(name, known)) for name in unknown)


def refuse(unknown: Iterable[UnknownField]) -> None:
    """Raise `InvalidInput` if there is any; it lists them all, or the first of very many."""
    places = [(one.path, one.message) for one in islice(unknown, MAX_TOLD)]
    if places:
        (path, message), *more = places
        raise InvalidInput(message, path=path, more=more)


def _parameter(name: str, hint: str | None) -> UnknownField:
    shown = name[:MAX_NAME_CHARACTERS]
    return UnknownField(path=shown, name=shown, hint=hint, kind="query parameter")


def _parameters(request: Request[Any, Any, Any]) -> dict[str, None]:
    """The route's query parameters; to find them takes a while, so that they are kept for as long as the route is."""
    handler = request.route_handler
    known = _PARAMETERS.get(handler)
    if known is None:
        in_path: dict[str, Any] = dict.fromkeys(request.path_params)
        model = handler.create_kwargs_model(path_parameters=in_path)
        known = _PARAMETERS[handler] = {parameter.field_alias: None for parameter in model.expected_query_params}
    return known
