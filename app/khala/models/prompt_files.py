"""Files in a prompt: which of them models see as they are, and which are told as text."""

from typing import Literal, TypeAlias

from khala.models.port import PromptFile

Sort: TypeAlias = Literal["image", "pdf", "text", "other"]

IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""What models see."""
PDF = "application/pdf"


def bare(file: PromptFile) -> str:
    """The file's media type without parameters."""
    return file.media_type.partition(";")[0].strip().lower()


def sort(file: PromptFile) -> Sort:
    """What a model is given of a file: an image, a PDF, its text where it is UTF-8, or no more than its name."""
    kind = bare(file)
    if kind in IMAGES:
        return "image"
    if kind == PDF:
        return "pdf"
    return "other" if text(file) is None else "text"


def text(file: PromptFile) -> str | None:
    """The text of a file, or None for what is none: all that is not UTF-8, or has zero bytes in it."""
    if b"\0" in file.data:
        return None
    try:
        return file.data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def head(file: PromptFile) -> str:
    """What a model is told before a file that it sees."""
    return f"[{_label(file)}]"


def told(file: PromptFile) -> str:
    """What a model is told instead of a file that it doesn't see."""
    found = text(file)
    label = _label(file)
    return f"[{label}: not readable as text]" if found is None else f"[{label}]\n{found}\n[End of {file.name!r}]"


def _label(file: PromptFile) -> str:
    return f"File {file.name!r} ({file.media_type}, {len(file.data)} bytes)"
