"""What kind of file this is, by its content and not by what anybody calls it."""

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
"""What a browser may show as it is: it runs nothing that is in it."""
TEXT_MEDIA_TYPES = ("text/plain", "text/markdown", "text/csv", "application/json")
"""What text may be said to be; what it is said to be besides is plain text."""
MEDIA_TYPE = re.compile(r"[A-Za-z0-9][\w.+-]{0,126}/[A-Za-z0-9][\w.+-]{0,126}(; ?charset=[\w-]{1,40})?")


class ContentSniffer:
    """Looks at a file as it comes, all of it."""

    def __init__(self) -> None:
        self._head = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = True

    def feed(self, chunk: bytes) -> None:
        """More of the file, in order."""
        if len(self._head) < MAX_SIGNATURE_BYTES:
            self._head += chunk[:MAX_SIGNATURE_BYTES]
        self._text = self._text and self._reads(chunk)

    def media_type(self, claimed: str) -> str | None:
        """The media type of the whole file; None for what is neither an image, a PDF nor text.

        All text looks alike, so which text it is may be claimed.
        """
        for signature, media_type in SIGNATURES:
            if signature.match(self._head):
                return media_type
        if not self._text or not self._reads(b"", final=True):
            return None
        bare = claimed.partition(";")[0].strip().lower()
        return bare if bare in TEXT_MEDIA_TYPES else "text/plain"

    def _reads(self, chunk: bytes, *, final: bool = False) -> bool:
        try:
            self._decoder.decode(chunk, final)
        except UnicodeDecodeError:
            return False
        return b"\0" not in chunk


def is_text(head: bytes) -> bool:
    """Whether what begins so is UTF-8 without NUL; a character that the end cuts is none's fault."""
    if b"\0" in head:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def valid_media_type(media_type: str) -> str:
    """The media type, as it may stand in a header."""
    return media_type if MEDIA_TYPE.fullmatch(media_type) else "application/octet-stream"
