"""Signatures of the texts in blobs. Pure."""

from khala.domain import search_terms
from khala.domain.search_signatures import signature

MAX_TEXT_BYTES = 128 * 1024
"""Bytes of a blob that are searched: those at its beginning."""
MAX_TERMS = 8_192
"""Different words of a blob that are searched, and beginnings of words: the first ones. A signature has 16 KiB."""
NOTHING = b""
"""The signature of a blob in which searches find nothing."""


def text_of(data: bytes) -> str | None:
    """The text at the beginning of a blob, of which `data` is the beginning; None for binary data."""
    head = data[:MAX_TEXT_BYTES]
    if b"\0" in head:
        return None
    try:
        return head.decode()
    except UnicodeDecodeError as error:
        # The last character may be incomplete.
        return head[: error.start].decode() if error.reason == "unexpected end of data" else None


def blob_signature(data: bytes) -> bytes:
    """The signature of the blob that begins with `data`; empty for binary data and for a text without words."""
    text = text_of(data)
    terms = search_terms.terms(text, limit=MAX_TERMS) if text else {}
    return signature(terms) if terms else NOTHING
