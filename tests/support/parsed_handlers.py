"""Has Litestar parse the signature of each handler once per process: tests start hundreds of servers in one process.

Without this, each start of a server parses the same 430 signatures again, which takes half of its time.
"""

from collections.abc import Callable, Hashable
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

from litestar._signature.model import SignatureModel
from litestar.utils.signature import ParsedSignature

from khala.api.application import application
from khala.api.context import Context
from khala.api.http.request_origin import OriginPolicy

T = TypeVar("T")
PARSE = ParsedSignature.from_fn
CREATE = SignatureModel.create
PARSED: dict[Hashable, ParsedSignature] = {}
MODELS: dict[Hashable, type[SignatureModel]] = {}


def install() -> None:
    """Parse each signature only once from now on."""
    ParsedSignature.from_fn = _parse  # type: ignore[assignment, method-assign]
    SignatureModel.create = _create  # type: ignore[method-assign]


def parse_all() -> None:
    """Parse the signatures of all handlers of the server now."""
    nothing = dict.fromkeys(Context.__struct_fields__)
    context = Context(**(nothing | {"origins": OriginPolicy()}))  # type: ignore[arg-type]
    application(context, web=Path(__file__).parent, version="0")


def _parse(fn: Any, namespace: dict[str, Any]) -> ParsedSignature:
    function = getattr(fn, "__func__", fn)
    if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        return PARSE(fn, namespace)
    # A function inside another one is a new object for each server, with the same code.
    known = (
        function.__code__,
        function.__module__,
        function.__defaults__,
        tuple(sorted((function.__kwdefaults__ or {}).items())),
        tuple(function.__annotations__.items()),
        function is fn,
        tuple(sorted(namespace.items())),
    )
    return _once(PARSED, known, lambda: PARSE(fn, namespace))


def _create(
    dependency_name_set: set[str], fn: Any, parsed_signature: ParsedSignature, type_decoders: Any, data_dto: Any = None
) -> type[SignatureModel]:
    # The model has the parameters of the signature, so that no other signature gets its identity. All servers have the
    # decoders of Litestar itself.
    known = (
        id(parsed_signature.parameters),
        frozenset(dependency_name_set),
        getattr(fn, "__name__", None),
        getattr(fn, "__module__", None),
        data_dto,
    )
    return _once(MODELS, known, lambda: CREATE(dependency_name_set, fn, parsed_signature, type_decoders, data_dto))


def _once(results: dict[Hashable, T], known: Hashable, make: Callable[[], T]) -> T:
    try:
        if known not in results:
            results[known] = make()
    except TypeError:  # a default or an annotation is not hashable, or names cannot be compared
        return make()
    return results[known]
