"""Detects a file's media type by its content, not by its name or claimed type."""

import codecs
import re

SIGNATURES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"%PDF-\d"), "application/pdf"),
)
MAX_SIGNATURE_BYTES = 16
INLINE_MEDIA_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp", "text/plain", "application/json")
"""Media types that browsers may display, because browsers execute no code in them."""
TEXT_MEDIA_TYPES = ("text/plain", "text/markdown", "text/csv", "application/json")
"""The media types that a client may claim for text. Any other claim becomes plain text."""
MEDIA_TYPE = re.compile(r"[A-Za-z0-9][\w.+-]{0,126}/[A-Za-z0-9][\w.+-]{0,126}(; ?charset=[\w-]{1,40})?")


class ContentSniffer:
    """Detects the media type of a streamed file, from all of its bytes."""

    def __init__(self) -> None:
        self._head = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = True

    def feed(self, chunk: bytes) -> None:
        """Add the next chunk of the file."""
        if len(self._head) < MAX_SIGNATURE_BYTES:
            self._head += chunk[:MAX_SIGNATURE_BYTES]
        self._text = self._text and self._is_utf8(chunk)

    def media_type(self, claimed: str) -> str | None:
        """The media type of the whole file; None unless it is an image, a PDF or text.

        Kinds of text can't be told apart, so the client may claim one.
        """
        for signature, media_type in SIGNATURES:
            if signature.match(self._head):
                return media_type
        if not self._text or not self._is_utf8(b"", final=True):
            return None
        bare = claimed.partition(";")[0].strip().lower()
        return bare if bare in TEXT_MEDIA_TYPES else "text/plain"

    def _is_utf8(self, chunk: bytes, *, final: bool = False) -> bool:
        try:
            self._decoder.decode(chunk, final)
        except UnicodeDecodeError:
            return False
        return b"\0" not in chunk


def is_text(head: bytes) -> bool:
    """Whether a file with this beginning is UTF-8 without NUL. The last character may be incomplete."""
    if b"\0" in head:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def valid_media_type(media_type: str) -> str:
    """The media type if it is valid in a header, or else `application/octet-stream`."""
    return media_type if MEDIA_TYPE.fullmatch(media_type) else "application/octet-stream"
