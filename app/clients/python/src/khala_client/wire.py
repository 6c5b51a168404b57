"""Reads what a server sends, and ignores what this version does not know."""

from typing import Any, TypeVar

import msgspec

from khala_client.errors import ServerError

Decoded = TypeVar("Decoded")


class WireStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of the structs on the wire: camelCase in JSON, snake_case here. Unknown fields are ignored."""


def decode_any(body: bytes) -> Any:
    """The JSON as plain values. Raises `ServerError` if it is none."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ServerError("The server's answer is no JSON.") from error


def decode(body: bytes | msgspec.Raw, kind: type[Decoded]) -> Decoded:
    """The JSON as `kind`. Raises `ServerError` if it does not have that form."""
    try:
        return msgspec.json.decode(body, type=kind, dec_hook=_from_plain)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ServerError(f"The server's answer can't be read: {error}.") from error


def encode(value: Any) -> bytes:
    """The value as JSON."""
    return msgspec.json.encode(value, enc_hook=_to_plain)


def _to_plain(value: Any) -> Any:
    to_plain = getattr(value, "to_plain", None)
    if to_plain is None:
        raise NotImplementedError(f"{type(value).__name__} can't be sent as JSON.")
    return to_plain()


def _from_plain(kind: type, value: Any) -> Any:
    """Build a value of a class that picks its own form: see `khala_client.content.Block`."""
    from_plain = getattr(kind, "from_plain", None)
    if from_plain is None:
        raise NotImplementedError(f"{kind} is no type of the wire.")
    return from_plain(value)
