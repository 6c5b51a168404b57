"""Parameters of OAuth requests, and errors of OAuth endpoints as RFC 6749 defines them."""

from collections import Counter
from typing import Any
from urllib.parse import parse_qsl

from litestar import Request, Response

from khala.domain.oauth import OAuthError

MAX_PARAMETERS = 32
MAX_FORM_BYTES = 16 * 1024
FORM = "application/x-www-form-urlencoded"


def parse_parameters(encoded: bytes) -> dict[str, str]:
    """Parse a query or form. Empty parameters count as absent. Raises `OAuthError` if one is repeated."""
    try:
        pairs = parse_qsl(encoded.decode("ascii"), max_num_fields=MAX_PARAMETERS, errors="strict")
    except ValueError as error:
        raise OAuthError("invalid_request", "The parameters cannot be read.") from error
    # RFC 8707 permits several resources; here a token is for one.
    repeated = [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]
    if repeated:
        raise OAuthError("invalid_request", "A parameter is repeated.")
    return dict(pairs)


async def read_form(request: Request[Any, Any, Any]) -> dict[str, str]:
    """Read the parameters of a form. Raises `OAuthError`."""
    if request.content_type[0].lower() != FORM:
        raise OAuthError("invalid_request", f"Send the parameters as Content-Type: {FORM}.")
    return parse_parameters(await request.body())


def required(parameters: dict[str, str], name: str) -> str:
    """Return a parameter. Raises `OAuthError` if it is missing."""
    if name not in parameters:
        raise OAuthError("invalid_request", f"The parameter {name} is missing.")
    return parameters[name]


def error_response(_: Request[Any, Any, Any], error: OAuthError) -> Response[dict[str, str]]:
    """Return the error as JSON (RFC 6749, section 5.2)."""
    body = {"error": error.code, "error_description": error.message}
    return Response(body, status_code=400, media_type="application/json")
