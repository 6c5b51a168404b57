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
    """The form in which a model gets a file: an image, a PDF, text if it is UTF-8, or only its name."""
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
    """The line before a file that the model sees."""
    return f"[{_label(file)}]"


def told(file: PromptFile) -> str:
    """The text in place of a file that the model cannot see."""
    found = text(file)
    label = _label(file)
    return f"[{label}: not readable as text]" if found is None else f"[{label}]\n{found}\n[End of {file.name!r}]"


def _label(file: PromptFile) -> str:
    return f"File {file.name!r} ({file.media_type}, {len(file.data)} bytes)"
